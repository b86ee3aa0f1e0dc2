"""A language-model run as a Hugging Face folder: weights with the multipliers folded in, config, code, tokenizer.

No stock family has this block (gated attention, normalized sigmoid routing in groups), so the folder brings its own
modeling file, which needs torch and transformers alone. Writing it needs neither.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from complete_mue.errors import FileError, RunError
from complete_mue.lab.data.tokenizers import END_OF_TEXT, JsonTokenizer, Tokenizer
from complete_mue.lab.models.lm import LanguageModel
from complete_mue.lab.nn.attention import Attention
from complete_mue.lab.nn.router_config import SHUFFLED
from complete_mue.lab.train.config import TextTask
from complete_mue.lab.train.sample import load_run, run_tokenizer
from complete_mue.layout import FeedForward
from complete_mue.storage import write_json

MODELING = "modeling_complete_mue"
END_TOKEN = "<|endoftext|>"


def export_huggingface(run: Path, folder: Path, warn: Callable[[str], None] = lambda text: None) -> Path:
    """Write a run's newest sound checkpoint as a Hugging Face model folder, whole or not at all."""
    config, model, _ = load_run(run, warn)
    if not isinstance(config.task, TextTask) or not isinstance(model, LanguageModel):
        raise RunError(f"{run}: draws pictures; give the run of a language model")
    return write_folder(model, run_tokenizer(config), config.task.sequence, folder)


def write_folder(model: LanguageModel, tokenizer: Tokenizer, sequence: int, folder: Path) -> Path:
    """Write a model of ours, with its tokenizer, as a Hugging Face folder."""
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise FileError(f"{folder}: is not empty; give a new folder")
    draft = folder.absolute().with_name(f".{folder.name}.part-{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
        save_file(folded_weights(model), draft / "model.safetensors", metadata={"format": "pt"})
        write_json(draft / "config.json", _config(model, tokenizer, sequence))
        write_json(draft / "generation_config.json", {"eos_token_id": tokenizer.end_of_text, "do_sample": False})
        shutil.copy(Path(__file__).with_name(f"{MODELING}.py"), draft / f"{MODELING}.py")
        _write_tokenizer(tokenizer, draft, sequence)
        if folder.exists():
            folder.rmdir()
        draft.replace(folder)
    except OSError as problem:
        raise FileError(f"{folder}: cannot be written ({problem.strerror or problem})") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def folded_weights(model: LanguageModel) -> dict[str, Tensor]:
    """Weights by their names in the modeling file, in its dtype, each times what our forward multiplies it by."""
    if model.replicas is not None:
        raise RunError("a model of several replicas: export one of them")
    found = {
        _their_name(tensor.name): model.get_parameter(tensor.name).detach().double().cpu() * tensor.multiplier
        for tensor in model.tensors()
    }
    for number, layer in enumerate(model.layers):
        _sharpen(layer.attention, f"layers.{number}.attention", found)
        _part_experts(layer.feed_forward.spec, f"layers.{number}.feed_forward", found)
        if layer.feed_forward.selection_bias is not None:
            found[f"layers.{number}.feed_forward.selection_bias"] = layer.feed_forward.selection_bias.detach().cpu()
    return {name: tensor.to(model.embedding.dtype).contiguous() for name, tensor in found.items()}


def _their_name(name: str) -> str:
    """Norms, tables, attention's matrices and always-active branches are modules there, with a weight each."""
    name = re.sub(r"\b(dense|shared)_(up|down)$", r"branch.\2.weight", name.replace(".gain", ".weight"))
    return re.sub(r"\b(embedding|readout|into|out)$", r"\1.weight", name)


def _sharpen(attention: Attention, at: str, found: dict[str, Tensor]) -> None:
    """The logits' scale becomes the usual 1 / sqrt(head_dim): what differs goes into the queries."""
    sharper = attention.scale * math.sqrt(attention.head_dim)
    if attention.query_norm is None:
        found[f"{at}.into.weight"][: attention.width] *= sharper
    else:
        found[f"{at}.query_norm.weight"] *= sharper


def _part_experts(spec: FeedForward, at: str, found: dict[str, Tensor]) -> None:
    """Experts go group by group; ours are stacked by width."""
    widths = list(dict.fromkeys(group.expert_width for group in spec.groups))
    for stack, width in enumerate(widths):
        own = {number: group.experts for number, group in enumerate(spec.groups) if group.expert_width == width}
        suffix = f"_{stack}" if len(widths) > 1 else ""
        for part in ("up", "down"):
            experts = found.pop(f"{at}.expert_{part}{suffix}").split([*own.values()])
            found |= {f"{at}.experts.{number}.{part}": some for number, some in zip(own, experts, strict=True)}


def _config(model: LanguageModel, tokenizer: Tokenizer, sequence: int) -> dict[str, Any]:
    blocks = []
    for block in model.shape.blocks:
        groups = [[group.experts, group.active, group.expert_width] for group in block.groups]
        blocks.append({"branch": sum(block.branches), "groups": groups})
    layer: Any = model.layers[0]
    router = layer.feed_forward.router_config
    if router.score == SHUFFLED:
        raise RunError(f"router.score = {SHUFFLED!r} is a control for experiments and has no Hugging Face form")
    return {
        "architectures": ["CompleteMueForCausalLM"],
        "model_type": "complete_mue",
        "auto_map": {
            "AutoConfig": f"{MODELING}.CompleteMueConfig",
            "AutoModelForCausalLM": f"{MODELING}.CompleteMueForCausalLM",
        },
        "vocab_size": model.vocab,
        "hidden_size": model.shape.width,
        "num_hidden_layers": model.shape.depth,
        "head_dim": model.head_dim,
        "blocks": blocks,
        "max_position_embeddings": sequence,
        "rope_theta": 10_000.0,
        "rms_norm_eps": model.final_norm.eps,
        "qk_norm": layer.attention.query_norm is not None,
        "router_score": router.score,
        "selection_bias": router.selection_bias,
        "logit_bias": router.logit_bias,
        "tie_word_embeddings": False,
        "dtype": str(model.embedding.dtype).removeprefix("torch."),
        "bos_token_id": tokenizer.end_of_text,
        "eos_token_id": tokenizer.end_of_text,
    }


def _write_tokenizer(tokenizer: Tokenizer, folder: Path, sequence: int) -> None:
    if isinstance(tokenizer, JsonTokenizer):
        (folder / "tokenizer.json").write_bytes(tokenizer.content)
        end = tokenizer.end
    else:
        end = END_TOKEN
        write_json(folder / "tokenizer.json", byte_tokenizer_json())
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end,
        "bos_token": end,
        "pad_token": end,
        "model_max_length": sequence,
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / "tokenizer_config.json", settings)


def byte_tokenizer_json() -> dict[str, Any]:
    """The byte tokenizer in the ``tokenizers`` format: byte-level BPE without merges, so that ids are the bytes."""
    # The format writes bytes as visible letters: printable Latin-1 as itself, the others from U+0100 on.
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(256 + n) for n, byte in enumerate(b for b in range(256) if b not in letters)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    end = {
        "id": END_OF_TEXT, "content": END_TOKEN, "special": True,
        "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
    }  # fmt: skip
    vocab = {letters[byte]: byte for byte in range(256)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": [],
        },
    }  # fmt: skip
