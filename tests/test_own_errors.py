"""Where a traceback, a hang or noise came before: our own errors, which name what was given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from complete_mue.cli import main  # noqa: E402
from complete_mue.errors import FileError, MueError, RunError  # noqa: E402
from complete_mue.lab.data import prepare  # noqa: E402
from complete_mue.lab.data.tars import ImageTars  # noqa: E402
from complete_mue.lab.data.tokenizers import JsonTokenizer  # noqa: E402
from complete_mue.lab.evals.tasks import read_records  # noqa: E402
from complete_mue.lab.recipes import recipe  # noqa: E402
from complete_mue.lab.train.config import override, read_config  # noqa: E402
from complete_mue.lab.train.run_folder import read_metrics  # noqa: E402
from complete_mue.lab.train.task import build  # noqa: E402
from complete_mue.lab.train.trainer import pick_device  # noqa: E402

DEEP = "[" * 100_000 + "]" * 100_000
END = {
    "id": 0, "content": "</s>", "special": True, "single_word": False, "lstrip": False, "rstrip": False,
    "normalized": False,
}  # fmt: skip


def tokenizer_file(path: Path, model: dict[str, Any], **more: Any) -> Path:
    """A tokenizer.json that knows ``</s>``, a, b and what the model adds."""
    parts = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    path.write_text(json.dumps({"version": "1.0", **parts, "added_tokens": [END], "model": model, **more}))
    return path


def bpe(dropout: float | None) -> dict[str, Any]:
    return {
        "type": "BPE", "dropout": dropout, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "vocab": {"</s>": 0, "a": 1, "b": 2, "ab": 3, "abab": 4}, "merges": [["a", "b"], ["ab", "ab"]],
    }  # fmt: skip


RAISES = {"type": "WordLevel", "vocab": {"</s>": 0, "a": 1}, "unk_token": "[UNK]"}
PANICS = {"pre_tokenizer": {"type": "FixedLength", "length": 0}}  # division by zero, deep in Rust


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("ab" * 200)
    return path


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("model", "more", "reason"),
    [(RAISES, {}, r"Missing \[UNK\]"), (bpe(None), PANICS, "chunk size must be non-zero")],
    ids=["raises", "panics"],
)
def test_tokenizers_that_fail_while_encoding(
    tmp_path: Path, text: Path, workers: int, model: dict[str, Any], more: dict[str, Any], reason: str
) -> None:
    pytest.importorskip("tokenizers")
    path = tokenizer_file(tmp_path / "tokenizer.json", model, **more)
    with pytest.raises(MueError, match=f"cannot encode this text.*{reason}"):
        prepare(text, tmp_path / "out", tokenizer=path, workers=workers, progress=False)
    with pytest.raises(MueError, match=f"cannot encode this text.*{reason}"):
        JsonTokenizer(path).encode("ab")


def test_dropout_is_left_out_and_said(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    path = tokenizer_file(tmp_path / "tokenizer.json", bpe(0.5))
    plain = tokenizer_file(tmp_path / "plain.json", bpe(None))
    made = []
    for name, tokenizer in (("one", path), ("two", path), ("plain", plain)):
        prepare(text, tmp_path / name, tokenizer=tokenizer, workers=2, progress=name == "one")
        made.append((tmp_path / name / "train-00000.bin").read_bytes())
        assert ("dropout of 0.5" in " ".join(capsys.readouterr().err.split())) == (name == "one")
    assert made[0] == made[1] == made[2]
    assert len({tuple(JsonTokenizer(path).encode("ab" * 20)) for _ in range(20)}) == 1


@pytest.mark.parametrize(
    "pattern",
    ["x{0..9999}y{0..9999}z{0..9999}.tar", "{0..99999}{0..99999}.tar", "{0..999999999}{5..3}.tar", "{0..100000}.tar"],
)
def test_patterns_of_too_many_tars(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(FileError, match="100000"):
        ImageTars(tmp_path / pattern)


def test_a_number_in_a_pattern_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(FileError):
        ImageTars(str(tmp_path / f"{{0..{'9' * 100}}}.tar"))


def test_files_nested_too_deeply(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    for content in (DEEP, '{"a":' * 100_000 + "1" + "}" * 100_000):
        config.write_text(content)
        with pytest.raises(FileError, match=r"config\.json"):
            read_config(config)
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 0, "loss": 1.0}}\n{DEEP}\n')
    assert read_metrics(tmp_path) == [{"step": 0, "loss": 1.0}]
    (tmp_path / "records.jsonl").write_text(DEEP + "\n")
    with pytest.raises(FileError, match=r"records\.jsonl.*not a JSON object"):
        read_records(tmp_path / "records.jsonl", ("text",))


@pytest.mark.parametrize("name", ["mps", "xla", "vulkan", "cuda:99", "tpu"])
def test_devices_that_are_not_there(name: str) -> None:
    if name == "mps" and torch.backends.mps.is_available():
        pytest.skip("this machine has mps")
    with pytest.raises(RunError, match=f"device = '{name}'"):
        pick_device(name)


def mue(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "complete_mue", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_model_too_large_for_any_machine(device: str) -> None:
    config = override(recipe("lm_tiny"), "shape.width=10000000000")
    with torch.device(device), pytest.raises(RunError, match=r"shape\.width = 10000000000"):
        build(config)


@pytest.mark.parametrize(
    "problem", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 1 bytes")]
)
def test_want_of_memory_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], problem: Exception
) -> None:
    def fails(**_: Any) -> None:
        raise problem

    monkeypatch.setattr("complete_mue.cli.app", fails)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("mue: error: not enough memory (")


@pytest.mark.parametrize("form", ["table", "json", "markdown", "csv"])
def test_a_plan_that_overflows_is_one_line(tmp_path: Path, form: str) -> None:
    text = '[shape]\nwidth = 128\ndepth = 4\nfeed_forward = "dense"\n[budget]\nbatch_tokens = 1024\nsteps = 100\n'
    (tmp_path / "reference.toml").write_text(f"{text}[hyper]\nlr = 1e-3\nweight_decay = 0.1\ninit_std = 1.7e308\n")
    (tmp_path / "target.toml").write_text(text.replace("128", "8"))
    result = mue("plan", str(tmp_path / "reference.toml"), str(tmp_path / "target.toml"), "--format", form)
    assert result.returncode == 2
    assert "init_std" in result.stderr
    assert " inf" in result.stderr
    assert len(result.stderr.splitlines()) == 1
