"""Exported folders load with transformers' own classes and give our logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import complete_mue as mue  # noqa: E402
from complete_mue.errors import MueError  # noqa: E402
from complete_mue.lab.data.tokenizers import ByteTokenizer  # noqa: E402
from complete_mue.lab.models.lm import LanguageModel  # noqa: E402
from complete_mue.lab.nn.router_config import RouterConfig  # noqa: E402
from complete_mue.lab.train.huggingface import export_huggingface, write_folder  # noqa: E402

pytestmark = pytest.mark.draws

LAYOUTS = {
    "dense@48": {},
    "8e2a@16": {},
    "8e4a2g1s@16": {"router": RouterConfig(selection_bias=True), "qk_norm": True},
    "dense@16+8e2a@16+4e2a@8": {"router": RouterConfig(score="softmax")},
    "8e3a1s@16": {"router": RouterConfig(logit_bias=True)},
}


def our_model(layout: str, **options: Any) -> LanguageModel:
    """A model whose every multiplier differs from 1, with weights far from their init."""
    reference = mue.Reference(
        mue.ModelShape(16, 2, mue.FeedForward.dense(16), head_dim=8),
        mue.Budget(batch_tokens=256, steps=10),
        mue.Hyper(lr=1e-2, weight_decay=0.1, init_std=0.1, betas=(0.9, 0.9), eps=1e-8),
    )
    shape = mue.ModelShape(32, 3, mue.FeedForward.parse(layout), dense_layers=1, head_dim=16)
    plan = mue.transfer(reference, shape, mue.Budget(batch_tokens=256, steps=10))
    model = LanguageModel(shape, 257, plan, **options)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5 if tensor.ndim == 1
                         else torch.randn(tensor.shape, generator=generator) * 0.4)  # fmt: skip
        for name, buffer in model.named_buffers():
            if name.endswith("selection_bias"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.2)
    return model.eval()


def loaded(folder: Path, **options: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, **options).eval()


@pytest.mark.filterwarnings("ignore")  # transformers' own
@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_and_generation_are_ours(layout: str, tmp_path: Path) -> None:
    """In float64, where no rounding comes near a choice of experts: what is left to differ is the formula."""
    model = our_model(layout, **LAYOUTS[layout]).double()
    folder = write_folder(model, ByteTokenizer(), 64, tmp_path / "hf")
    stock = loaded(folder, dtype=torch.float64)
    tokens = torch.randint(0, 257, (3, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours, theirs = model(tokens), stock(tokens).logits
    scale = ours.abs().max().item()
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-11 * scale)
    written = stock.generate(tokens[:, :10], max_new_tokens=12, do_sample=False, eos_token_id=None)
    for greedy in (written, model.generate(tokens[:, :10], 12, temperature=0)):
        # Both take the best of logits rounded to float32: a token may lose to another by that rounding alone.
        logits = model(greedy)[:, 9:-1].detach()
        taken = logits.gather(-1, greedy[:, 10:, None])
        assert (logits.amax(-1, keepdim=True) - taken).max() <= 1e-6 * scale


@pytest.mark.filterwarnings("ignore")
def test_weights_are_rounded_once(tmp_path: Path) -> None:
    """Folded in float64, written in the model's dtype."""
    model = our_model("8e4a2g1s@16", router=RouterConfig(selection_bias=True))
    single = loaded(write_folder(model, ByteTokenizer(), 64, tmp_path / "single")).state_dict()
    double = loaded(write_folder(model.double(), ByteTokenizer(), 64, tmp_path / "double"), dtype="auto").state_dict()
    assert {tensor.dtype for tensor in single.values()} == {torch.float32}
    assert {tensor.dtype for tensor in double.values()} == {torch.float64}
    assert all(torch.equal(single[name], double[name].float()) for name in double)


@pytest.mark.filterwarnings("ignore")
def test_left_padding_changes_nothing(tmp_path: Path) -> None:
    model = our_model("8e2a@16").double()
    stock = loaded(write_folder(model, ByteTokenizer(), 64, tmp_path / "hf"), dtype=torch.float64)
    tokens = torch.randint(0, 256, (1, 12), generator=torch.Generator().manual_seed(1))
    padded = torch.cat([torch.full((1, 5), 256), tokens], dim=1)
    mask = (torch.arange(17) >= 5).long()[None]
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        alone = stock(tokens).logits
        beside = stock(padded, attention_mask=mask, position_ids=positions).logits[:, 5:]
    torch.testing.assert_close(alone, beside, rtol=0, atol=1e-11 * alone.abs().max().item())


@pytest.mark.filterwarnings("ignore")
def test_a_fresh_model_trains_from_the_folder(tmp_path: Path) -> None:
    """The folder's code also makes new models and gives gradients to every parameter."""
    folder = write_folder(our_model("4e2a1s@16"), ByteTokenizer(), 64, tmp_path / "hf")
    stock = loaded(folder).train()
    tokens = torch.randint(0, 256, (8, 32), generator=torch.Generator().manual_seed(1))
    stock(tokens, labels=tokens).loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in stock.parameters())


@pytest.mark.filterwarnings("ignore")
def test_the_byte_tokenizer_is_the_same(tmp_path: Path) -> None:
    folder = write_folder(our_model("dense@16"), ByteTokenizer(), 64, tmp_path / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = "def f(x):\n    return 'ä €'  \t# \x00\x7f" + "".join(map(chr, range(0x80, 0x180)))
    assert tokenizer(text)["input_ids"] == ByteTokenizer().encode(text)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.eos_token_id == ByteTokenizer().end_of_text


def test_a_run_is_exported_and_a_full_folder_is_refused(tmp_path: Path) -> None:
    from complete_mue.lab.recipes import recipe
    from complete_mue.lab.train.config import override
    from complete_mue.lab.train.loop import train

    small = ("shape.width=16", "shape.depth=2", "shape.head_dim=8", "betas=hold", "budget.steps=1", "device=cpu",
             "task.sequence=16", "budget.batch_tokens=32")  # fmt: skip
    train(override(recipe("lm_tiny:8e2a"), *small), tmp_path / "run")
    folder = export_huggingface(tmp_path / "run", tmp_path / "hf")
    assert {"config.json", "model.safetensors", "tokenizer.json", "modeling_complete_mue.py"} <= {
        path.name for path in folder.iterdir()
    }
    with pytest.raises(MueError, match="not empty"):
        export_huggingface(tmp_path / "run", tmp_path / "hf")


@pytest.mark.filterwarnings("ignore")
def test_a_tokenizer_file_goes_along(tmp_path: Path) -> None:
    import json

    from complete_mue.lab.data.tokenizers import JsonTokenizer
    from complete_mue.lab.train.huggingface import byte_tokenizer_json

    (tmp_path / "tokenizer.json").write_text(json.dumps(byte_tokenizer_json()))
    own = JsonTokenizer(tmp_path / "tokenizer.json")
    folder = write_folder(our_model("dense@16"), own, 64, tmp_path / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer("a b\né")["input_ids"] == own.encode("a b\né") == ByteTokenizer().encode("a b\né")
    assert (tokenizer.eos_token_id, tokenizer.model_max_length) == (own.end_of_text, 64)
