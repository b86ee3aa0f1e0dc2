"""Batches of prepared text: every window once, the same for every number of ranks, damage is named."""

from __future__ import annotations

import copy
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from complete_mue.errors import FileError, MueError, RunError
from complete_mue.lab.data import StandardLibrary, TextData, describe, prepare
from complete_mue.lab.data.manifest import Manifest
from complete_mue.lab.data.standard_library import LARGEST
from complete_mue.lab.data.tokenizers import ByteTokenizer

SEPARATOR = "\n\n\n"


@pytest.fixture
def folder(tmp_path: Path, texts: list[str]) -> Path:
    (tmp_path / "a.txt").write_text(SEPARATOR.join(texts))
    prepare(tmp_path / "a.txt", tmp_path / "out", separator=SEPARATOR, shard_tokens=900, held_out=0.1, progress=False)
    return tmp_path / "out"


def stream(folder: Path, split: str = "train") -> torch.Tensor:
    shards = json.loads((folder / "manifest.json").read_text())["splits"][split]["shards"]
    return torch.from_numpy(
        np.concatenate([np.fromfile(folder / s["file"], np.uint16) for s in shards]).astype(np.int64)
    )


@pytest.mark.parametrize("sequence", [1, 7, 64, 2000])
def test_windows_are_the_stream(folder: Path, sequence: int) -> None:
    """In stream order windows give back all tokens; the longest ones span several shards."""
    data, tokens = TextData(folder, sequence=sequence, rows=1), stream(folder)
    windows = data.at(np.arange(data.windows))
    assert windows.shape == (data.windows, sequence + 1)
    assert windows.dtype == torch.int64
    assert torch.equal(windows[:, :-1].flatten(), tokens[: data.windows * sequence])
    assert torch.equal(windows[:, 1:].flatten(), tokens[1 : data.windows * sequence + 1])
    assert data.tokens - data.windows * sequence - 1 < sequence


def row_set(batches: list[torch.Tensor]) -> list[tuple[int, ...]]:
    return sorted(tuple(row.tolist()) for batch in batches for row in batch)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_an_epoch_has_every_window_once_over_all_ranks(folder: Path, world: int) -> None:
    one = TextData(folder, sequence=32, rows=6, seed=4)
    ranks = [TextData(folder, sequence=32, rows=6, seed=4, rank=rank, world=world) for rank in range(world)]
    batches = [torch.cat([data.batch(step) for data in ranks]) for step in range(len(one))]
    assert all(torch.equal(batch, one.batch(step)) for step, batch in enumerate(batches))
    taken = np.concatenate([one.indices(step) for step in range(len(one))])
    assert len(set(taken.tolist())) == len(taken) == len(one) * 6
    assert one.windows - len(taken) < 6
    assert row_set(batches) == row_set([one.at(np.sort(taken))])
    assert taken.tolist() != sorted(taken.tolist())


def test_batches_depend_on_the_step_alone(folder: Path) -> None:
    first, second = TextData(folder, sequence=16, rows=4, seed=1), TextData(folder, sequence=16, rows=4, seed=1)
    later = [second.batch(step) for step in (9, 3, 9)]
    assert torch.equal(first.batch(3), later[1])
    assert torch.equal(later[0], later[2])
    assert not torch.equal(first.batch(3), TextData(folder, sequence=16, rows=4, seed=2).batch(3))


def test_the_end_of_the_epoch(folder: Path) -> None:
    data = TextData(folder, sequence=16, rows=4)
    with pytest.raises(RunError, match=rf"{len(data)} steps of 4 rows"):
        data.batch(len(data))
    again = TextData(folder, sequence=16, rows=4, epochs="repeat")
    assert torch.equal(again.batch(0), data.batch(0))
    assert not torch.equal(again.batch(len(data)), data.batch(0))


def test_held_out_windows_are_other_text(folder: Path, texts: list[str]) -> None:
    held = TextData(folder, sequence=8, rows=1, split="held_out")
    whole = held.manifest.load_tokenizer(folder).decode(held.at(np.arange(held.windows))[:, :-1].flatten().tolist())
    assert whole.startswith(texts[180])
    assert "#179" not in whole
    assert held.tokens + TextData(folder, sequence=8, rows=1).tokens == sum(len(t.encode()) + 1 for t in texts)


def test_many_shards_are_not_all_held_open(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("complete_mue.lab.data.file_parts._MOST", 2)
    data = TextData(folder, sequence=32, rows=2)
    every = torch.cat([data.batch(step) for step in range(len(data))])
    assert len(data._files._open) == 2
    monkeypatch.undo()
    assert torch.equal(every, torch.cat([data.batch(step) for step in range(len(data))]))


# -- damage -----------------------------------------------------------------------------------------------------------


def test_damage_is_named(folder: Path) -> None:
    shard = folder / "train-00003.bin"
    content = shard.read_bytes()
    shard.write_bytes(content[:-2])
    with pytest.raises(FileError, match=r"train-00003\.bin: \d+ bytes, .*\d+"):
        TextData(folder, sequence=8, rows=1)
    shard.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    TextData(folder, sequence=8, rows=1)
    with pytest.raises(FileError, match=r"train-00003\.bin: .*checksum"):
        TextData(folder, sequence=8, rows=1, verify=True)
    shard.write_bytes(b"\xff" * len(content))
    data = TextData(folder, sequence=8, rows=1)
    with pytest.raises(FileError, match=r"65535.* 256.*verify=True"):
        data.at(np.arange(data.windows))
    shard.unlink()
    with pytest.raises(FileError, match=r"train-00003\.bin: No such file"):
        TextData(folder, sequence=8, rows=1)


def test_mistakes_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"'test'.* train, held_out"):
        TextData(folder, sequence=8, rows=1, split="test")
    with pytest.raises(RunError, match="one window"):
        TextData(folder, sequence=10**6, rows=1)
    with pytest.raises(RunError, match="1000000 rows"):
        TextData(folder, sequence=8, rows=10**6)
    with pytest.raises(MueError, match="sequence = 0"):
        TextData(folder, sequence=0, rows=1)
    with pytest.raises(FileError, match="mue data prepare"):
        TextData(tmp_path / "nowhere", sequence=8, rows=1)


def test_a_tokenizer_that_changed_is_named(tmp_path: Path, bpe: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat sat")
    prepare(tmp_path / "a.txt", tmp_path / "out", tokenizer=bpe, workers=1, progress=False)
    copied = tmp_path / "out" / "tokenizer.json"
    copied.write_text(copied.read_text() + "\n")
    with pytest.raises(FileError, match="made the data"):
        Manifest.read(tmp_path / "out").load_tokenizer(tmp_path / "out")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | st.text(max_size=8)
    | st.sampled_from(["../../etc/passwd", "train-00000.bin", "uint32", "0" * 64]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for name, part in inner for place in places(part, (*path, name)))]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_fuzzed_manifest_opens_or_is_named(folder: Path, data: st.DataObject) -> None:
    path = folder / "manifest.json"
    original = path.read_text()
    try:
        changed = copy.deepcopy(json.loads(original))
        place = data.draw(st.sampled_from(places(changed)))
        if not place:
            changed = data.draw(JSON)
        else:
            target = changed
            for name in place[:-1]:
                target = target[name]
            if data.draw(st.booleans()):
                target[place[-1]] = data.draw(JSON)
            else:
                del target[place[-1]]
        path.write_text(json.dumps(changed))
        named = True
        try:
            opened = TextData(folder, sequence=8, rows=1)
            opened.batch(0)
            describe(folder)
        except MueError as problem:
            named = str(folder) in str(problem)
        assert named
    finally:
        path.write_text(original)


@given(content=st.binary(max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_as_a_manifest_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(FileError, match=r"manifest\.json"):
        Manifest.read(tmp_path)


# -- the standard library ---------------------------------------------------------------------------------------------


def test_the_standard_library_is_text_at_hand() -> None:
    data = StandardLibrary(sequence=128, rows=8)
    assert data.vocab == 257
    assert 1_000_000 < data.tokens < 2 * LARGEST
    assert data.batch(0).shape == (8, 129)
    text = ByteTokenizer().decode(data.at(np.arange(200))[:, :-1].flatten().tolist())
    assert "import " in text
    assert "def " in text
    held = StandardLibrary(sequence=128, rows=8, split="held_out")
    assert 0.005 < held.tokens / data.tokens < 0.2
    with pytest.raises(MueError, match="give one of train, held_out"):
        StandardLibrary(sequence=8, rows=1, split="test")


def test_the_standard_library_is_the_same_in_another_process() -> None:
    check = (
        "import hashlib; from complete_mue.lab.data import StandardLibrary\n"
        "data = StandardLibrary(sequence=64, rows=4, seed=3)\n"
        "print(data.tokens, hashlib.sha256(data.batch(17).numpy().tobytes()).hexdigest())"
    )
    there = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout
    data = StandardLibrary(sequence=64, rows=4, seed=3)
    assert there.split() == [str(data.tokens), hashlib.sha256(data.batch(17).numpy().tobytes()).hexdigest()]


def test_a_text_that_is_not_unicode_has_tokens_nevertheless() -> None:
    """What a shell hands on when its bytes are not UTF-8."""
    assert ByteTokenizer().encode("a\udcff") == [97, 63]
