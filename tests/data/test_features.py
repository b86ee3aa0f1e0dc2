"""Features cached once equal those computed directly; caching goes on where it stopped; damage is named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from complete_mue.errors import FileError, RunError, ShapeError
from complete_mue.lab.data import FeatureData, Scenes, cache_features, describe
from complete_mue.lab.data.encoders import Autoencoder, TextEncoder


class Halving(nn.Module):
    """Follows the interface of diffusers: means of 2 x 2 pixels as latents, with a scale and a shift."""

    def __init__(self, scale: float = 2.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.config = {"scaling_factor": scale, "shift_factor": 0.25}

    def encode(self, images: torch.Tensor) -> Any:
        means = nn.functional.avg_pool2d(images, 2) * self.weight
        return SimpleNamespace(latent_dist=SimpleNamespace(mode=lambda: means))

    def decode(self, latents: torch.Tensor) -> Any:
        return SimpleNamespace(sample=nn.functional.interpolate(latents, scale_factor=2))


def cached(out: Path, items: int = 50, **options: Any) -> Any:
    return cache_features(
        Scenes(size=16),
        out,
        autoencoder=Autoencoder(Halving()),
        items=items,
        shard_items=16,
        batch=5,
        progress=False,
        **options,
    )


def test_latents_are_those_of_the_autoencoder(tmp_path: Path) -> None:
    manifest = cached(tmp_path / "out", store="float32")
    assert manifest.image_shape == (3, 8, 8)
    assert [shard.items for shard in manifest.shards] == [16, 16, 16, 2]
    data, scenes = FeatureData(tmp_path / "out", rows=10, verify=True), Scenes(size=16)
    assert len(data) == 5
    seen = []
    for step in range(5):
        numbers, batch = data.indices(step), data.batch(step)
        direct = scenes.at(numbers)
        assert torch.allclose(batch.images, (nn.functional.avg_pool2d(direct.images, 2) - 0.25) * 2, atol=1e-6)
        assert torch.equal(batch.text, direct.text)
        assert data.captions(numbers) == scenes.captions(numbers)
        seen += numbers.tolist()
    assert sorted(seen) == list(range(50))
    parts = [FeatureData(tmp_path / "out", rows=10, rank=rank, world=2).batch(1) for rank in range(2)]
    assert torch.equal(torch.cat([part.images for part in parts]), data.batch(1).images)
    assert "3 x 8 x 8" in str(describe(tmp_path / "out"))


def test_pixels_and_bytes_without_encoders(tmp_path: Path) -> None:
    cache_features(Scenes(size=16), tmp_path / "out", items=8, progress=False)
    batch, direct = FeatureData(tmp_path / "out", rows=8).batch(0), Scenes(size=16).at(np.arange(8))
    order = FeatureData(tmp_path / "out", rows=8).indices(0)
    assert torch.allclose(batch.images, direct.images[order], atol=1e-3)
    assert torch.equal(batch.text, direct.text[order])


def test_decode_undoes_encode() -> None:
    flat = torch.full((1, 3, 8, 8), 0.5)
    coder = Autoencoder(Halving())
    assert torch.allclose(coder.encode(flat), torch.full((1, 3, 4, 4), 0.5))
    assert torch.allclose(coder.decode(coder.encode(flat)), flat)
    each = Halving()
    each.config = {"latents_mean": [0.0, 0.5, 1.0], "latents_std": [1.0, 2.0, 4.0]}
    assert Autoencoder(each).encode(flat)[0, :, 0, 0].tolist() == [0.5, 0.0, -0.125]
    assert torch.allclose(Autoencoder(each).decode(Autoencoder(each).encode(flat)), flat)


def test_a_stopped_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from complete_mue.lab.data import features

    cached(tmp_path / "whole")
    write, written = features._write, []

    def stopping(*given: Any) -> Any:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(given[0])
        return write(*given)

    monkeypatch.setattr(features, "_write", stopping)
    with pytest.raises(KeyboardInterrupt):
        cached(tmp_path / "out")
    monkeypatch.undo()
    with pytest.raises(FileError, match="did not finish"):
        FeatureData(tmp_path / "out", rows=1)
    with pytest.raises(FileError, match="another store"):
        cached(tmp_path / "out", store="float32")
    stamps = [path.stat().st_mtime_ns for path in written]
    cached(tmp_path / "out")
    assert [path.stat().st_mtime_ns for path in written] == stamps
    for path in (tmp_path / "whole").iterdir():
        if path.name != ".lock":
            assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()


def test_a_finished_cache_is_for_what_made_it(tmp_path: Path) -> None:
    first = cached(tmp_path / "out")
    assert cached(tmp_path / "out") == first
    with pytest.raises(FileError, match="another items"):
        cached(tmp_path / "out", items=51)
    other = Halving()
    nn.init.constant_(other.weight, 2.0)
    with pytest.raises(FileError, match="another autoencoder"):
        cache_features(
            Scenes(size=16), tmp_path / "out", autoencoder=Autoencoder(other), items=50, shard_items=16, progress=False
        )


def test_damage_and_mistakes_are_named(tmp_path: Path) -> None:
    cached(tmp_path / "out")
    shard = tmp_path / "out" / "features-00001.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(FileError, match=r"features-00001\.safetensors: its checksum"):
        FeatureData(tmp_path / "out", rows=1, verify=True)
    shard.write_bytes(b"\0" * len(content))
    with pytest.raises(FileError, match=r"features-00001\.safetensors: not "):
        FeatureData(tmp_path / "out", rows=50).batch(0)
    shard.write_bytes(content[:-1])
    with pytest.raises(FileError, match=r"features-00001\.safetensors: \d+ bytes, .*\d+"):
        FeatureData(tmp_path / "out", rows=1)
    shard.write_bytes(content)
    manifest = tmp_path / "out" / "manifest.json"
    good = json.loads(manifest.read_text())
    for key, value in (
        ("shards", 3),
        ("image_shape", ["x"]),
        ("shards", [{"file": "../x"}]),
        ("asked", 1),
        ("version", 9),
    ):
        manifest.write_text(json.dumps(good | {key: value}))
        with pytest.raises(FileError, match=r"manifest\.json"):
            FeatureData(tmp_path / "out", rows=1)
    manifest.write_text(json.dumps(good | {"image_shape": [3, 9, 9]}))
    with pytest.raises(FileError, match="manifest"):
        FeatureData(tmp_path / "out", rows=1).batch(0)
    with pytest.raises(ShapeError, match="endless source"):
        cache_features(Scenes(), tmp_path / "other", progress=False)
    with pytest.raises(ShapeError, match="store = 'int8'"):
        cached(tmp_path / "other", store="int8")
    big = Halving(scale=1e9)
    with pytest.raises(RunError, match=r"latents: .*torch\.float16"):
        cache_features(Scenes(size=16), tmp_path / "other", autoencoder=Autoencoder(big), items=1, progress=False)


# -- real libraries, tiny models --------------------------------------------------------------------------------------


@pytest.mark.tools
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_real_autoencoder(tmp_path: Path) -> None:
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    torch.manual_seed(0)
    made = diffusers.AutoencoderKL(
        block_out_channels=(8, 8), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4, norm_num_groups=4, scaling_factor=0.5,
    )  # fmt: skip
    made.save_pretrained(tmp_path / "vae")
    manifest = cache_features(
        Scenes(size=16), tmp_path / "out", autoencoder=tmp_path / "vae", items=6, store="float32", progress=False
    )
    assert manifest.image_shape == (4, 8, 8)
    data = FeatureData(tmp_path / "out", rows=6)
    with torch.no_grad():
        direct = made.eval().encode(Scenes(size=16).at(data.indices(0)).images).latent_dist.mode() * 0.5
    assert torch.allclose(data.batch(0).images, direct, atol=1e-5)
    with pytest.raises(FileError, match=r"config\.json .*\.safetensors"):
        Autoencoder.load(tmp_path / "out")
    coder = Autoencoder.load(tmp_path / "vae")
    assert coder.decode(data.batch(0).images).shape == (6, 3, 16, 16)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_real_text_encoder(tmp_path: Path, bpe: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.T5Config(
        vocab_size=300, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, pad_token_id=0, eos_token_id=1,
        decoder_start_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    made = transformers.T5EncoderModel(config).eval()
    made.save_pretrained(tmp_path / "t5")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(bpe), pad_token="<|padding|>", eos_token="<|endoftext|>"
    )
    tokenizer.save_pretrained(tmp_path / "t5")
    manifest = cache_features(
        Scenes(size=16), tmp_path / "out", text_encoder=tmp_path / "t5", items=6, text_length=48, store="float32",
        progress=False,
    )  # fmt: skip
    assert manifest.text_shape == (48, 16)
    data = FeatureData(tmp_path / "out", rows=6)
    batch, captions = data.batch(0), Scenes(size=16).captions(data.indices(0))
    for text, caption in zip(batch.text, captions, strict=True):
        ids = torch.tensor([tokenizer(caption)["input_ids"][:48]])
        with torch.no_grad():
            direct = made(input_ids=ids).last_hidden_state[0]
        length = len(ids[0])
        assert torch.allclose(text[:length], direct, atol=1e-5)
        assert text[length:].isnan().all()
    assert batch.text[:, -1].isnan().any()
    with pytest.raises(FileError, match=r"config\.json .*\.safetensors"):
        TextEncoder.load(tmp_path / "out")
    with pytest.raises(ShapeError, match="captions"):
        data.captions(np.arange(1))


# -- damage while it is read ------------------------------------------------------------------------------------------


def test_a_shard_cut_under_a_reader_is_an_error(tmp_path: Path) -> None:
    """Were it mapped into memory, SIGBUS would end this process."""
    cached(tmp_path / "out", store="float32")
    data = FeatureData(tmp_path / "out", rows=50)
    data.batch(0)
    for shard in (tmp_path / "out").glob("features-*.safetensors"):
        os.truncate(shard, 700)
    with pytest.raises(FileError, match="ends before byte"):
        data.batch(0)


def test_nan_in_the_data_is_named(tmp_path: Path) -> None:
    cached(tmp_path / "out", store="float32")
    shard = tmp_path / "out" / "features-00001.safetensors"
    tensors = load_file(shard)
    tensors["images"][3, 0, 0, 0] = torch.nan
    save_file(tensors, shard)
    with pytest.raises(FileError, match=r"features-00001\.safetensors: .*item 3 .*NaN"):
        FeatureData(tmp_path / "out", rows=50).batch(0)
    tensors["images"][3, 0, 0, 0] = torch.inf
    save_file(tensors, shard)
    with pytest.raises(FileError, match=r"item 3 .*NaN"):
        FeatureData(tmp_path / "out", rows=50).batch(0)
