"""Preparing text: every source round trips, every interruption is survived, every mistake is named."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from complete_mue.errors import FileError, MueError, RunError, ShapeError
from complete_mue.lab.data import describe, prepare
from complete_mue.lab.data.documents import HubDataset
from complete_mue.lab.data.extras import need
from complete_mue.lab.data.manifest import Manifest
from complete_mue.lab.data.tokenizers import ByteTokenizer, JsonTokenizer, load_tokenizer
from complete_mue.storage import sha256

SEPARATOR = "\n\n\n"
TwoSources = Callable[[int], list[Path]]


def stream(folder: Path, split: str = "train") -> np.ndarray[Any, Any]:
    """All tokens of a split, read without the library."""
    data = json.loads((folder / "manifest.json").read_text())
    parts = [np.fromfile(folder / row["file"], data["dtype"]) for row in data["splits"][split]["shards"]]
    return np.concatenate(parts)


def read_back(folder: Path, split: str = "train") -> list[str]:
    """Documents of a prepared folder."""
    manifest = Manifest.read(folder)
    tokenizer, tokens = manifest.load_tokenizer(folder), stream(folder, split)
    ends = np.flatnonzero(tokens == manifest.tokenizer.end_of_text)
    starts = [0, *(ends[:-1] + 1).tolist()]
    assert ends[-1] == len(tokens) - 1
    return [tokenizer.decode(tokens[a:b].tolist()) for a, b in zip(starts, ends.tolist(), strict=True)]


def quiet(sources: Any, out: Path, **options: Any) -> Manifest:
    return prepare(sources, out, progress=False, **options)


# -- sources ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("suffix", "pack"), [("", open), (".gz", gzip.open), (".xz", lzma.open), (".bz2", bz2.open)])
def test_text_files(tmp_path: Path, texts: list[str], suffix: str, pack: Any) -> None:
    source = tmp_path / f"notes.txt{suffix}"
    with pack(source, "wb") as file:
        file.write(SEPARATOR.join(texts).encode())
    manifest = quiet(source, tmp_path / "out", separator=SEPARATOR, shard_tokens=5000)
    assert read_back(tmp_path / "out") == texts
    assert manifest.splits["train"].documents == 200
    assert manifest.splits["train"].tokens == sum(len(text.encode()) + 1 for text in texts)
    assert len(manifest.splits["train"].shards) > 5
    assert manifest.dtype == "uint16"
    assert manifest.sources[0]["sha256"] == sha256(source)
    for shard in manifest.splits["train"].shards:
        assert shard.sha256 == sha256(tmp_path / "out" / shard.file)
        assert shard.documents > 0


def test_a_file_is_one_document_without_a_separator(tmp_path: Path) -> None:
    for name, text in (("b.md", "two\n\n\nparts"), ("a.txt", "\ufefffirst"), ("empty.txt", ""), ("skip.png", "no")):
        (tmp_path / "in" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_text(text, encoding="utf-8")
    quiet(tmp_path / "in", tmp_path / "out")
    assert read_back(tmp_path / "out") == ["first", "two\n\n\nparts"]


@pytest.mark.parametrize("block", [1, 2, 3, 5, 1000])
def test_separators_across_blocks(tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a\n\n\n\nb\n\nc\n\n\nd\n\n\n\n\n\n\ne"
    monkeypatch.setattr("complete_mue.lab.data.documents._BLOCK", block)
    (tmp_path / "a.txt").write_text(text)
    quiet(tmp_path / "a.txt", tmp_path / "out", separator=SEPARATOR)
    assert read_back(tmp_path / "out") == [part for part in text.split(SEPARATOR) if part]


def test_json_lines(tmp_path: Path, texts: list[str]) -> None:
    plain, packed = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    rows = [json.dumps({"body": text, "n": 1}) for text in texts[:100]]
    plain.write_text("\n".join([*rows[:50], '{"body": null}', *rows[50:]]) + "\n\n")
    with gzip.open(packed, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"body": text}, ensure_ascii=False) + "\n" for text in texts[100:])
    quiet([plain, packed], tmp_path / "out", text_key="body")
    assert read_back(tmp_path / "out") == texts


@pytest.mark.tools
def test_parquet(tmp_path: Path, texts: list[str]) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"text": [*texts[:50], None, *texts[50:]], "n": range(201)})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=64)
    quiet(tmp_path / "a.parquet", tmp_path / "out")
    assert read_back(tmp_path / "out") == texts
    with pytest.raises(FileError, match=r"'txt' .*'text'.* text, n: give one as the text key"):
        quiet(tmp_path / "a.parquet", tmp_path / "other", text_key="txt")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not really PAR1")
    with pytest.raises(FileError, match=r"bad\.parquet: .*Parquet"):
        quiet(tmp_path / "bad.parquet", tmp_path / "other")


@pytest.mark.tools
def test_hugging_face_datasets(tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    made = datasets.Dataset.from_dict({"text": texts})
    made.save_to_disk(tmp_path / "saved")
    quiet(f"hf:{tmp_path / 'saved'}", tmp_path / "one", shard_tokens=4000)
    assert read_back(tmp_path / "one") == texts
    datasets.DatasetDict(train=made.select(range(150)), test=made.select(range(150, 200))).save_to_disk(tmp_path / "d")
    quiet(HubDataset(str(tmp_path / "d"), split="test"), tmp_path / "two")
    assert read_back(tmp_path / "two") == texts[150:]
    with pytest.raises(FileError, match=r"'dev'.* train, test"):
        quiet(f"hf:{tmp_path / 'd'}:dev", tmp_path / "three")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    quiet(HubDataset(str(tmp_path / "files")), tmp_path / "four")
    assert read_back(tmp_path / "four") == texts


# -- tokenizers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_tokenizer_json(tmp_path: Path, texts: list[str], bpe: Path, workers: int) -> None:
    texts[3] += " <|endoftext|> is only text"
    (tmp_path / "a.txt").write_text(SEPARATOR.join(texts))
    out = tmp_path / "out"
    manifest = quiet(
        tmp_path / "a.txt", out, tokenizer=bpe, separator=SEPARATOR, workers=workers, shard_tokens=3000
    )  # fmt: skip
    assert read_back(out) == texts
    assert manifest.tokenizer.vocab == 300
    assert manifest.tokenizer.end == "<|endoftext|>"
    assert (out / "tokenizer.json").read_bytes() == bpe.read_bytes()
    assert manifest.splits["train"].tokens < sum(len(text.encode()) + 1 for text in texts)
    assert (stream(out) == manifest.tokenizer.end_of_text).sum() == 200


def test_the_number_of_workers_changes_nothing(
    tmp_path: Path, texts: list[str], bpe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text(SEPARATOR.join(texts))
    made = []
    for workers, chunk in ((1, 2**19), (3, 500)):
        monkeypatch.setattr("complete_mue.lab.data.prepare_text._CHUNK_BYTES", chunk)
        out = tmp_path / str(workers)
        quiet(tmp_path / "a.txt", out, tokenizer=bpe, separator=SEPARATOR, workers=workers, shard_tokens=1000)
        made.append({path.name: path.read_bytes() for path in out.iterdir() if path.name != ".lock"})
    assert made[0] == made[1]


def test_wide_vocabularies_are_stored_in_32_bits(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocab = {"</s>": 0, "[UNK]": 1, **{f"w{n}": n for n in range(2, 70_001)}}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "words.json"))
    (tmp_path / "a.txt").write_text("w70000 w65535 w65536 w2")
    manifest = quiet(tmp_path / "a.txt", tmp_path / "out", tokenizer=tmp_path / "words.json")
    assert manifest.dtype == "uint32"
    assert stream(tmp_path / "out").tolist() == [70_000, 65_535, 65_536, 2, 0]


def test_which_token_ends_a_text_can_be_said(tmp_path: Path, bpe: Path) -> None:
    assert JsonTokenizer(bpe, end_of_text="<|padding|>").end_of_text == 0
    assert JsonTokenizer(bpe, end_of_text="<|padding|>").sha256 != JsonTokenizer(bpe).sha256
    with pytest.raises(FileError, match=r"'</s>'.*'<\|padding\|>', '<\|endof"):
        JsonTokenizer(bpe, end_of_text="</s>")
    endless = json.loads(bpe.read_text())
    endless["added_tokens"] = []
    for token in ("<|padding|>", "<|endoftext|>"):
        del endless["model"]["vocab"][token]
    (tmp_path / "endless.json").write_text(json.dumps(endless))
    with pytest.raises(FileError, match="end-of-text"):
        JsonTokenizer(tmp_path / "endless.json")


def test_a_packed_tokenizer_is_the_same_tokenizer(tmp_path: Path, bpe: Path) -> None:
    packed = tmp_path / "tokenizer.json.xz"
    packed.write_bytes(lzma.compress(bpe.read_bytes()))
    plain, again = load_tokenizer(bpe), load_tokenizer(packed)
    assert isinstance(again, JsonTokenizer)
    assert (again.name, again.sha256) == ("tokenizer.json", plain.sha256)
    packed.write_bytes(packed.read_bytes()[:-40])
    with pytest.raises(FileError, match="damaged or cut off"):
        load_tokenizer(packed)


def test_byte_tokenizer() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode([*tokenizer.encode("naïve 猫"), tokenizer.end_of_text]) == "naïve 猫"
    assert tokenizer.decode([0xFF, 65]) == "\ufffdA"
    lengths, tokens = tokenizer.documents([b"ab", b"c"])
    assert (lengths.tolist(), tokens.tolist()) == ([3, 2], [97, 98, 256, 99, 256])


def test_a_hub_name_is_fetched(bpe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked = []
    monkeypatch.setattr(hub, "hf_hub_download", lambda *names: asked.append(names) or str(bpe))
    assert load_tokenizer("EleutherAI/gpt-neox-20b").name == "EleutherAI/gpt-neox-20b"
    assert asked == [("EleutherAI/gpt-neox-20b", "tokenizer.json")]

    def offline(*_: str) -> str:
        raise OSError("no network\nsecond line")

    monkeypatch.setattr(hub, "hf_hub_download", offline)
    with pytest.raises(FileError, match=r"no network.*\"bytes\""):
        load_tokenizer("EleutherAI/gpt-neox-20b")


# -- held-out documents -----------------------------------------------------------------------------------------------


def test_the_last_documents_are_held_out(tmp_path: Path, texts: list[str]) -> None:
    (tmp_path / "a.txt").write_text(SEPARATOR.join(texts))
    out = tmp_path / "out"
    manifest = quiet(tmp_path / "a.txt", out, separator=SEPARATOR, held_out=0.1, shard_tokens=1500)
    assert read_back(out) == texts[:180]
    assert read_back(out, "held_out") == texts[180:]
    assert manifest.splits["held_out"].documents == 20
    assert len(manifest.splits["held_out"].shards) > 1
    (tmp_path / "b.txt").write_text(SEPARATOR.join(texts[:2]))
    with pytest.raises(ShapeError, match="2 documents"):
        quiet(tmp_path / "b.txt", tmp_path / "other", separator=SEPARATOR, held_out=0.9)


@pytest.mark.parametrize("held_out", [0.02, 0.5, 0.9])
def test_of_a_lone_document_the_end_is_held_out(tmp_path: Path, held_out: float) -> None:
    """As the example of `mue data prepare --help` asks for: one text file, no separator."""
    text = "".join(f"line {n} ünder {n * n}\n" for n in range(1000))
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    manifest = quiet(tmp_path / "a.txt", tmp_path / "out", held_out=held_out)
    (train,), (held,) = read_back(tmp_path / "out"), read_back(tmp_path / "out", "held_out")
    assert train + held == text
    assert held.startswith("line ")
    assert len(held) / len(text) == pytest.approx(held_out, abs=0.002)
    assert quiet(tmp_path / "a.txt", tmp_path / "out", held_out=held_out) == manifest


def test_a_lone_document_goes_on_after_its_first_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "a.txt").write_text("first\nsecond\nthird\n")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    quiet(tmp_path / "a.txt", whole, held_out=0.4)
    monkeypatch.setattr("complete_mue.lab.data.shard_folder.ShardFolder.finish", stop)
    with pytest.raises(KeyboardInterrupt):
        quiet(tmp_path / "a.txt", cut, held_out=0.4)
    monkeypatch.undo()
    (cut / "held_out-00000.bin").unlink()
    quiet(tmp_path / "a.txt", cut, held_out=0.4)
    for path in whole.glob("*.bin"):
        assert (cut / path.name).read_bytes() == path.read_bytes()


def test_a_lone_line_cannot_be_cut(tmp_path: Path) -> None:
    for number, text in enumerate(("no line break", "one at the end\n", "\n")):
        (tmp_path / f"{number}.txt").write_text(text)
        with pytest.raises(ShapeError, match="line"):
            quiet(tmp_path / f"{number}.txt", tmp_path / f"out{number}", held_out=0.1)


# -- interruptions ----------------------------------------------------------------------------------------------------

RUN = """
import sys, time
from contextlib import contextmanager
from complete_mue.lab.data import prepare, shard_folder

whole, left = shard_folder.whole, int(sys.argv[5])

@contextmanager
def waits(path):
    global left
    with whole(path) as file:
        if left == 0:
            file.write(b"half a shard")
            file.flush()
            print("now", flush=True)
            time.sleep(600)
        left -= 1
        yield file

shard_folder.whole = waits
prepare(sys.argv[1:3], sys.argv[3], tokenizer=sys.argv[4], separator="\\n\\n\\n", held_out=0.2, shard_tokens=2000,
        workers=2, progress=False)
"""


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def killed(sources: list[Path], out: Path, tokenizer: str, shards: int) -> int:
    """Start preparing, kill it in the middle of the shard after so many; the status."""
    command = [sys.executable, "-c", RUN, *map(str, sources), str(out), tokenizer, str(shards)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline() == "now\n":
            process.kill()
    return process.returncode


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_a_killed_run_goes_on_to_the_same_bytes(
    tmp_path: Path, two_sources: TwoSources, bpe: Path, tokenizer: str
) -> None:
    name = str(bpe) if tokenizer == "bpe" else "bytes"
    sources = two_sources(1200)
    options = {"tokenizer": name, "separator": SEPARATOR, "held_out": 0.2, "shard_tokens": 2000}
    quiet(sources, tmp_path / "whole", **options)
    expected = files(tmp_path / "whole")
    out = tmp_path / "killed"
    assert killed(sources, out, name, 5) == -signal.SIGKILL, "it ended before it could be killed"
    assert not (out / "manifest.json").exists()
    with pytest.raises(FileError, match="did not finish"):
        Manifest.read(out)
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("*.bin")}
    assert len(kept) == 5
    (out / ".train-00099.bin.part").write_bytes(b"half")
    assert killed(sources, out, name, 10**6) == 0
    assert files(out) == expected
    assert kept == {name: (out / name).stat().st_mtime_ns for name in kept}


def test_a_finished_shard_that_was_damaged_is_made_again(tmp_path: Path, two_sources: TwoSources) -> None:
    sources = two_sources(600)
    out, options = tmp_path / "out", {"separator": SEPARATOR, "shard_tokens": 2000}
    quiet(sources, tmp_path / "whole", **options)
    _stop_after(sources, out, 6, options)
    (out / "train-00002.bin").write_bytes(b"short")
    quiet(sources, out, **options)
    assert files(out) == files(tmp_path / "whole")


def _stop_after(sources: list[Path], out: Path, shards: int, options: dict[str, Any]) -> None:
    """Prepare until so many shards are written, then fail as a full disk would."""
    import complete_mue.lab.data.shard_folder as module

    whole, written = module.whole, []

    def failing(path: Path) -> Any:
        written.append(path)
        if len(written) > shards:
            raise KeyboardInterrupt
        return whole(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "whole", failing)
        with pytest.raises(KeyboardInterrupt):
            quiet(sources, out, **options)
    assert len(list(out.glob("*.bin"))) == shards


@pytest.mark.parametrize("stop", [1, 3, 7, 12])
def test_resume_at_any_shard(tmp_path: Path, two_sources: TwoSources, stop: int) -> None:
    sources = two_sources(500)
    options = {"separator": SEPARATOR, "shard_tokens": 1500, "held_out": 0.3}
    quiet(sources, tmp_path / "whole", **options)
    _stop_after(sources, tmp_path / "out", stop, options)
    quiet(sources, tmp_path / "out", **options)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    hold = (
        "import sys, time; from pathlib import Path; from complete_mue.storage import exclusive\n"
        "with exclusive(Path(sys.argv[1]), 'x'): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path / "out")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(RunError, match=rf"pid {process.pid}"):
            quiet(tmp_path / "a.txt", tmp_path / "out")
        process.kill()
        process.wait()
    assert quiet(tmp_path / "a.txt", tmp_path / "out").splits["train"].tokens == 5


def test_a_full_disk_is_said_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 200_000)
    run = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "from complete_mue.lab.data import prepare\n"
        "prepare(sys.argv[1], sys.argv[2], progress=False)"
    )
    done = subprocess.run(
        [sys.executable, "-c", run, str(tmp_path / "a.txt"), str(tmp_path / "out")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "RunError" in done.stderr
    assert "(File too large)" in done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".lock", "progress.json"]


# -- a folder that is there -------------------------------------------------------------------------------------------


def test_a_finished_folder_is_left_alone_and_another_one_refused(tmp_path: Path, texts: list[str]) -> None:
    source, out = tmp_path / "a.txt", tmp_path / "out"
    source.write_text(texts[0])
    first = quiet(source, out)
    stamps = {path.name: path.stat().st_mtime_ns for path in out.iterdir() if path.name != ".lock"}
    source.rename(tmp_path / "renamed.txt")
    assert quiet(tmp_path / "renamed.txt", out) == first
    assert stamps == {path.name: path.stat().st_mtime_ns for path in out.iterdir() if path.name != ".lock"}
    with pytest.raises(FileError, match=r"shard_tokens \(16777216, now 5\)"):
        quiet(tmp_path / "renamed.txt", out, shard_tokens=5)
    source.write_text("other text")
    with pytest.raises(FileError, match="another source"):
        quiet(source, out)


def test_a_changed_source_is_noticed_when_going_on(tmp_path: Path, two_sources: TwoSources) -> None:
    sources = two_sources(100)
    _stop_after(sources, tmp_path / "out", 2, {"separator": SEPARATOR, "shard_tokens": 500})
    sources[1].write_text(sources[1].read_text().replace("cat", "cow"))
    with pytest.raises(FileError, match="another source"):
        quiet(sources, tmp_path / "out", separator=SEPARATOR, shard_tokens=500)
    # Where no shard is finished nothing would be lost, so that a first attempt with a mistake does no harm.
    (tmp_path / "bad.jsonl").write_text('{"txt": "a"}')
    with pytest.raises(FileError, match="no key 'text'"):
        quiet(tmp_path / "bad.jsonl", tmp_path / "other")
    assert quiet(tmp_path / "bad.jsonl", tmp_path / "other", text_key="txt").splits["train"].tokens == 2


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"asked": 3}', '{"asked": {}, "shards": 3}', "{" * 10**5, "\xff"])
def test_a_broken_record_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "progress.json").write_text(content, encoding="latin-1")
    with pytest.raises(FileError, match=r"progress\.json"):
        quiet(tmp_path / "a.txt", tmp_path / "out")


def test_strange_files_are_not_written_among(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(FileError, match=r"'a\.txt'.*mue data prepare"):
        quiet(tmp_path / "a.txt", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "options", "says"),
    [
        ("a.txt", b"caf\xe9 au lait", {}, r"a\.txt: not UTF-8 text"),
        ("a.txt.gz", b"\x1f\x8b\x08 broken", {}, r"a\.txt\.gz: "),
        ("a.txt.gz", gzip.compress(b"text " * 999, mtime=0)[:-20], {}, "damaged or cut off"),
        ("a.txt.xz", lzma.compress(b"text " * 999)[:-20], {}, "damaged or cut off"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', {}, r"a\.jsonl:2: not a JSON object"),
        ("a.jsonl", b'["a"]\n', {}, r"a\.jsonl:1: not a JSON object \(a list, not an object\); write one per line"),
        ("a.jsonl", b'{"txt": "a", "id": 1}\n', {}, r"no key 'text' \(did you mean 'txt'\?\); keys are txt, id"),
        ("a.jsonl", b'{"text": 7}\n', {}, r"a\.jsonl:1: 'text' is '7', not a text"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', {}, "not Unicode text"),
        ("a.jsonl", b"[" * 100_000, {}, r"a\.jsonl:1: not a JSON object"),
        ("a.jsonl", b'{"text": null}\n', {}, "no documents in it"),
        ("a.txt", b"", {}, "no documents in it"),
        ("a.txt", b"", {"held_out": 0.1}, "no documents in it"),
        ("a.json", b"[]", {}, r"write one JSON object per line \(\.jsonl\)"),
        ("a.tar.gz", b"", {}, r"a \.tar file is no text; unpack or convert it first"),
        ("a.txt", b"text", {"separator": ""}, "separator"),
        ("a.txt", b"text", {"held_out": 1.0}, "held-out fraction = 1.0: give one"),
        ("a.txt", b"text", {"held_out": "x"}, "held-out fraction = 'x': give one"),
        ("a.txt", b"text", {"shard_tokens": 0}, "shard_tokens = 0"),
        ("a.txt", b"text", {"workers": 0}, "workers = 0"),
        ("a.txt", b"text", {"tokenizer": "nowhere/tokenizer.json"}, "No such file"),
        ("a.txt", b"text", {"end_of_text": "x"}, "its end is 256"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, name: str, content: bytes, options: dict[str, Any], says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MueError, match=says):
        quiet(tmp_path / name, tmp_path / "out", **options)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_missing_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"no such file.*hf:NAME"):
        quiet(tmp_path / "nowhere.txt", tmp_path / "out")
    with pytest.raises(FileError, match="no sources"):
        quiet([], tmp_path / "out")
    with pytest.raises(FileError, match="write hf:NAME"):
        quiet("hf:a:b:c:d", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="no documents"):
        quiet(tmp_path / "empty", tmp_path / "out")


def test_documents_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("complete_mue.lab.data.documents.LARGEST_DOCUMENT", 10_000)
    monkeypatch.setattr("complete_mue.lab.data.documents._BLOCK", 4096)
    monkeypatch.setattr("complete_mue.lab.data.text_files.LARGEST_LINE", 10_000)
    with gzip.open(tmp_path / "bomb.txt.gz", "wb") as file:
        file.write(b"0" * 10**6)
    with pytest.raises(FileError, match=r"bomb\.txt\.gz: .*10000 bytes.*separator"):
        quiet(tmp_path / "bomb.txt.gz", tmp_path / "out")
    with gzip.open(tmp_path / "bomb.jsonl.gz", "wb") as file:
        file.write(b"0" * 10**6)
    with pytest.raises(FileError, match=r"line .*10000 bytes"):
        quiet(tmp_path / "bomb.jsonl.gz", tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"model": {"type": "BPE"}}', b"{" * 1000])
def test_a_broken_tokenizer_is_named(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(FileError, match=r"tokenizer\.json: not "):
        load_tokenizer(tmp_path)


def test_progress_is_shown_on_stderr(tmp_path: Path, texts: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text(SEPARATOR.join(texts))
    prepare(tmp_path / "a.txt", tmp_path / "out", separator=SEPARATOR)
    shown = capfd.readouterr()
    assert not shown.out
    assert "tokenizing" in shown.err
    assert "100%" in shown.err
    assert "tokens" in shown.err


def test_describe(tmp_path: Path, texts: list[str]) -> None:
    (tmp_path / "a.txt").write_text(SEPARATOR.join(texts))
    quiet(tmp_path / "a.txt", tmp_path / "out", separator=SEPARATOR, held_out=0.5)
    summary = describe(tmp_path / "out")
    assert summary.to_dict()["train"]["documents"] == 100
    assert summary.to_dict()["vocabulary"] == 257
    assert "100 documents" in str(summary)
    json.dumps(summary.to_dict())
    with pytest.raises(FileError, match=r"manifest\.json.*mue data prepare"):
        describe(tmp_path)


def test_a_missing_package_is_said() -> None:
    with pytest.raises(MueError, match=r"Parquet .*pip install no_such_package"):
        need("no_such_package.inner", "Parquet")


def test_importing_loads_nothing_heavy() -> None:
    heavy = ("torch", "numpy", "tokenizers", "datasets", "transformers", "diffusers", "pyarrow", "PIL")
    check = f"import sys, complete_mue.lab.data; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    worker = "import sys, complete_mue.lab.data.prepare_text; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", worker], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
