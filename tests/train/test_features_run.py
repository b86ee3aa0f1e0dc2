"""Runs on cached latents and text features, with real (tiny) encoders, from the cache to a picture."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from complete_mue.errors import RunError  # noqa: E402
from complete_mue.lab.data import Scenes, Shapes, cache_features  # noqa: E402
from complete_mue.lab.recipes import recipe  # noqa: E402
from complete_mue.lab.sweep.grid import Target  # noqa: E402
from complete_mue.lab.sweep.roles import roles_of  # noqa: E402
from complete_mue.lab.train.config import RunConfig, override  # noqa: E402
from complete_mue.lab.train.loop import train  # noqa: E402
from complete_mue.lab.train.sample import draw_pictures, load_run  # noqa: E402
from complete_mue.lab.train.task import build  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
SMALL = ("shape.width=16", "shape.depth=2", "shape.head_dim=8", "betas=hold", "budget.steps=2")


def config_of(folder: Path, *more: str, base: str = "dit_tiny:8e2a") -> RunConfig:
    tokens = ("task.patch=2", "budget.batch_tokens=64")
    return override(recipe(base), *SMALL, f"task.source={folder}", "task.size=8", *tokens, *more)


def draw(run: Path, out: Path, prompt: str = "", **options: Any) -> Path:
    config, model, _ = load_run(run)
    return draw_pictures(config, model, prompt, 4, out, steps=2, guidance=2.0, seed=0, **options)


@pytest.mark.tools
def test_latents_of_a_real_autoencoder(tmp_path: Path) -> None:
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    torch.manual_seed(0)
    diffusers.AutoencoderKL(
        block_out_channels=(8, 8), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4, norm_num_groups=4, scaling_factor=0.5,
    ).save_pretrained(tmp_path / "vae")  # fmt: skip
    cache_features(Scenes(size=16), tmp_path / "latents", autoencoder=tmp_path / "vae", items=9, progress=False)
    config, run = config_of(tmp_path / "latents"), tmp_path / "run"
    task = build(config)
    x, _, text, _ = task.batch(0)
    assert x.shape == (4, 4, 8, 8)
    assert text.dtype == torch.int64
    assert task.steps == 2
    assert train(config, run).status == "finished"
    assert draw(run, tmp_path / "picture", prompt="a red circle on black").read_bytes().startswith(b"\x89PNG")

    shutil.move(tmp_path / "vae", tmp_path / "elsewhere")
    with pytest.raises(RunError, match=r"'.*vae'.* --autoencoder"):
        draw(run, tmp_path / "picture.png")
    assert draw(run, tmp_path / "moved.png", autoencoder=str(tmp_path / "elsewhere")).exists()
    other = diffusers.AutoencoderKL.from_pretrained(tmp_path / "elsewhere")
    torch.nn.init.constant_(next(other.parameters()), 1.0)
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(RunError, match="latents"):
        draw(run, tmp_path / "picture.png", autoencoder=str(tmp_path / "other"))


def test_features_of_a_real_text_encoder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    words = sorted({word for caption in Shapes().captions(torch.arange(300).numpy()) for word in caption.split()})
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: n for n, word in enumerate(["<pad>", "<eos>", "<unk>", *words])}, "<unk>")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(tmp_path / "t5")
    sizes = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    torch.manual_seed(0)
    transformers.T5EncoderModel(transformers.T5Config(**sizes, decoder_start_token_id=0)).save_pretrained(
        tmp_path / "t5"
    )
    cache_features(
        Shapes(size=8), tmp_path / "features", text_encoder=tmp_path / "t5", items=8, text_length=6, progress=False
    )
    config, run = config_of(tmp_path / "features"), tmp_path / "run"
    task = build(config)
    assert task.model.text_features == 16
    assert set(roles_of([Target("cached", None, config)])) == {tensor.role.value for tensor in task.model.tensors()}
    assert task.batch(0)[2].shape == (4, 6, 16)
    assert task.sequence == 16 + 6
    assert train(config, run).status == "finished"
    assert draw(run, tmp_path / "picture.png").exists()
    assert draw(run, tmp_path / "prompted.png", prompt="a red circle on black").exists()
    with pytest.raises(RunError, match=r"--text-encoder"):
        draw(run, tmp_path / "picture.png", prompt="a red circle", text_encoder=str(tmp_path / "nowhere"))


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    cache_features(Scenes(size=16), tmp_path / "pixels", items=8, progress=False)
    fits = config_of(tmp_path / "pixels", "task.size=16", "task.patch=4")
    assert build(fits).batch(0)[0].shape == (4, 3, 16, 16)
    assert "bias" not in roles_of([Target("cached", None, fits)])
    with pytest.raises(RunError, match=r"16 x 16.* 8 x 8.*task\.size=16"):
        build(config_of(tmp_path / "pixels"))
    with pytest.raises(RunError, match=r"scenes, shapes, sprites"):
        build(config_of(tmp_path / "nothing"))
    with pytest.raises(RunError, match=r"2 steps .*task\.epochs=repeat"):
        train(override(fits, "budget.steps=3"), tmp_path / "run")
    again = override(fits, "budget.steps=3", "task.epochs=repeat")
    assert train(again, tmp_path / "again").status == "finished"


@pytest.mark.parametrize("base", ["dit_proxy", "dit_large"])
def test_the_papers_recipes_take_latents_of_their_size(base: str) -> None:
    """512 px at 16x compression: 32 x 32 latents, one per token."""
    task = recipe(base).task
    assert (task.size, task.patch, task.tokens_per_row()) == (32, 1, 1024)
