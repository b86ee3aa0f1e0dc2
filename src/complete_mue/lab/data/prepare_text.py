"""Tokenize sources once into shards: in parallel, resumable, whole files only.

Shards hold whole documents and close at the first document that reaches ``shard_tokens``; where they are cut depends
on nothing but sources and settings, so a run that was killed and continues ends with the same bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from complete_mue.errors import FileError, ShapeError
from complete_mue.lab.data.documents import HubDataset, Reader, open_sources
from complete_mue.lab.data.manifest import ITEM_SIZE, Manifest, Shard, TokenizerInfo
from complete_mue.lab.data.progress import Meter
from complete_mue.lab.data.shard_folder import (
    MANIFEST,
    PROGRESS,
    SPLITS,
    TEXT,
    TOKENIZER,
    is_whole,
    refuse_other_request,
    write_shard,
)
from complete_mue.lab.data.tokenizers import Encoded, JsonTokenizer, Tokenizer, load_tokenizer
from complete_mue.lab.records.decode import Count, Step
from complete_mue.layout.numbers import count
from complete_mue.storage import whole, write_json

SHARD_TOKENS = 2**24
_CHUNK_BYTES = 2**19
_CHUNK_DOCUMENTS = 1024


def prepare(
    sources: str | Path | HubDataset | Sequence[str | Path | HubDataset],
    out: str | Path,
    *,
    tokenizer: str | Path = "bytes",
    end_of_text: str | None = None,
    text_key: str = "text",
    separator: str | None = None,
    shard_tokens: int = SHARD_TOKENS,
    workers: int = 2,
    held_out: float = 0.0,
    progress: bool = True,
) -> Manifest:
    """Tokenize ``sources`` into the folder ``out`` and return its manifest.

    ``sources``: text files (also .gz, .xz, .bz2), .jsonl, .parquet, folders of them, ``hf:NAME:CONFIG:SPLIT``.
    ``tokenizer``: ``"bytes"``, a ``tokenizer.json``, or a hub name; ``end_of_text`` its token that ends documents.
    ``separator``: what stands between the documents of a text file; without it a file is one document.
    ``held_out``: the fraction of documents, the last ones, that become the split ``held_out``; of a single document, as
    a text file without a separator is, the last fraction of its text, from a line's beginning on.

    Killed or stopped, the same call continues after the last finished shard; called again when all is done, it returns
    at once. Settings or sources that differ from those of the folder are an error.
    """
    out = Path(out)
    count("shard_tokens", shard_tokens)
    count("workers", workers)
    if isinstance(held_out, bool) or not isinstance(held_out, int | float) or not 0 <= held_out < 1:
        raise ShapeError(f"held_out = {held_out!r}: give a fraction of the documents, from 0 to below 1")
    chosen = load_tokenizer(tokenizer, end_of_text=end_of_text)
    readers = open_sources(sources, text_key=text_key, separator=separator)
    settings = {
        "text_key": text_key, "separator": separator, "shard_tokens": shard_tokens, "held_out": float(held_out),
    }  # fmt: skip
    with TEXT.held(out):
        run = _Run(out, chosen, readers, settings, workers, Meter(progress, sum(reader.size for reader in readers)))
        with run.meter:
            if isinstance(chosen, JsonTokenizer) and chosen.dropout:
                run.meter.note(f"{chosen.name}: its BPE dropout of {chosen.dropout:g} is left out; tokens may not vary")
            return run.finish()


@dataclass
class _Progress:
    """What is done: shards by split with where the next document stands (source, document), documents in all."""

    asked: dict[str, Any]
    total: Count | None = None
    shards: dict[str, list[Shard]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    after: dict[str, tuple[Step, Step]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if set(self.shards) != set(SPLITS):
            raise ShapeError(f"shards are of {', '.join(self.shards)!r:.80}, not of {', '.join(SPLITS)}")
        for shard in self.listed:
            if shard.file not in self.after:
                raise ShapeError(f"after says nothing of {shard.file}")

    @property
    def listed(self) -> list[Shard]:
        """All shards, in order."""
        return [shard for split in SPLITS for shard in self.shards[split]]

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.listed)

    def write(self, folder: Path) -> None:
        write_json(folder / PROGRESS, asdict(self))


class _Run:
    """One call of ``prepare``, holding the folder."""

    def __init__(
        self,
        out: Path,
        tokenizer: Tokenizer,
        readers: list[Reader],
        settings: dict[str, Any],
        workers: int,
        meter: Meter,
    ) -> None:
        self.out, self.tokenizer, self.readers, self.settings = out, tokenizer, readers, settings
        self.workers, self.meter = workers, meter
        self.info = TokenizerInfo.of(tokenizer)
        self.asked = _asked(self.info, settings, [reader.identity for reader in readers])
        self.halved = False  # whether the one document there is gives both splits
        self.starts: dict[int, int] = {}  # source -> number of its first document

    def finish(self) -> Manifest:
        """Go on from what is there to the manifest."""
        if (self.out / MANIFEST).exists():
            done = Manifest.read(self.out)
            refuse_other_request(self.out, _asked(done.tokenizer, done.settings, done.sources), self.asked)
            for split in done.splits:
                done.check(self.out, split)
            return done
        progress = self._progress()
        self._keep_tokenizer()
        self._write_shards(progress, self._train_documents(progress))
        splits = {split: tuple(rows) for split, rows in progress.shards.items() if rows or split == "train"}
        if not progress.documents:
            names = ", ".join(reader.name for reader in self.readers[:3])
            raise FileError(f"{names}: no documents in it; give text that is not empty")
        manifest = Manifest(self.info, splits, tuple(reader.identity for reader in self.readers), self.settings)
        manifest.write(self.out)
        return manifest

    def _progress(self) -> _Progress:
        """What an earlier call finished, without shards that are not whole any more and those after them."""
        progress = TEXT.unfinished(_Progress, self.out)
        if progress is None:
            progress = _Progress(self.asked)
            progress.write(self.out)
        if progress.documents:
            refuse_other_request(self.out, progress.asked, self.asked)
        elif progress.asked != self.asked:  # nothing would be lost: a first attempt that failed
            return _Progress(self.asked)
        size = ITEM_SIZE[self.info.dtype]
        kept = takewhile(lambda shard: is_whole(self.out / shard.file, shard.tokens * size), progress.listed)
        names = {shard.file for shard in kept}
        progress.shards = {split: [row for row in progress.shards[split] if row.file in names] for split in SPLITS}
        return progress

    def _keep_tokenizer(self) -> None:
        if isinstance(self.tokenizer, JsonTokenizer):
            with whole(self.out / TOKENIZER) as file:
                file.write(self.tokenizer.content)

    # -- documents ------------------------------------------------------------------------------------------------

    def _train_documents(self, progress: _Progress) -> int | None:
        """How many documents come before the held-out ones; None for all. Counts them once."""
        if not self.settings["held_out"]:
            return None
        if progress.total is None:
            self.meter.start("counting")
            progress.total = sum(1 for _ in self._documents(0, 0))
            progress.write(self.out)
        if progress.total == 1:  # of one document, the end of its text
            self.halved = True
            return 1
        held: int = max(1, round(progress.total * self.settings["held_out"]))
        if held >= progress.total:
            raise ShapeError(
                f"held_out = {self.settings['held_out']} of {progress.total} documents leaves none to train on; "
                "give more documents (text files: a separator) or a smaller fraction"
            )
        return progress.total - held

    def _halves(self, documents: Iterator[bytes]) -> Iterator[bytes]:
        """A lone document as two, cut behind the line that its held-out fraction begins in."""
        for text in documents:
            middle = int(len(text) * (1 - self.settings["held_out"]))
            border = 1 + (text.find(b"\n", middle) if b"\n" in text[middle:-1] else text.rfind(b"\n", 0, middle))
            if not 0 < border < len(text):
                raise ShapeError(
                    f"held_out = {self.settings['held_out']} of one document without line breaks: give more text"
                )
            yield text[:border]
            yield text[border:]

    def _documents(self, source: int, skip: int) -> Iterator[bytes]:
        """Documents from the ``skip``-th of ``source`` on; notes where sources start and how far reading is."""
        passed = sum(reader.size for reader in self.readers[:source])
        for number in range(source, len(self.readers)):
            reader = self.readers[number]
            documents = self._halves(reader.documents()) if self.halved else reader.documents()
            seen = skip if number == source else 0
            for _ in islice(documents, seen):
                self.meter.at(passed + reader.position)
            for text in documents:
                seen += 1
                self.meter.at(passed + reader.position)
                yield text
            passed += reader.size
            self.starts[number + 1] = self.starts.get(number, 0) + seen

    # -- shards ---------------------------------------------------------------------------------------------------

    def _write_shards(self, progress: _Progress, train: int | None) -> None:
        self.meter.start("tokenizing")
        last = progress.listed[-1:]
        source, skip = progress.after[last[0].file] if last else (0, 0)
        self.starts = {source: progress.documents - skip}
        cutter = _Cutter(self, progress, train)
        chunks = _chunks(self._documents(source, skip))
        for lengths, tokens in _tokenized(self.tokenizer, chunks, self.workers):
            cutter.add(lengths, tokens)
            self.meter.tokens(len(tokens))
        cutter.close()

    def place(self, document: int) -> tuple[int, int]:
        """Where a document stands: its source, and its number there."""
        source = max(source for source, first in self.starts.items() if first <= document)
        return source, document - self.starts[source]


class _Cutter:
    """Collects documents and writes a shard whenever enough tokens, or the last document of a split, are in."""

    def __init__(self, run: _Run, progress: _Progress, train: int | None) -> None:
        self.run, self.progress, self.train = run, progress, train
        self.document = progress.documents
        self.parts: list[NDArray[Any]] = []
        self.tokens = self.held = 0

    @property
    def split(self) -> str:
        return "train" if self.train is None or self.document < self.train else "held_out"

    def add(self, lengths: NDArray[np.int64], tokens: NDArray[np.uint32]) -> None:
        """Take the documents of one chunk, shard by shard."""
        ends = np.cumsum(lengths)
        first = taken = 0  # documents and tokens of the chunk that are in shards or parts
        while first < len(lengths):
            full = int(np.searchsorted(ends, taken + self.run.settings["shard_tokens"] - self.tokens)) + 1
            last = min(full, len(lengths))
            if self.split == "train" and self.train is not None:
                last = min(last, first + self.train - self.document - self.held)
            self.parts.append(tokens[taken : ends[last - 1]].astype(f"<u{ITEM_SIZE[self.run.info.dtype]}"))
            self.tokens += int(ends[last - 1]) - taken
            self.held += last - first
            first, taken = last, int(ends[last - 1])
            at_border = self.split == "train" and self.document + self.held == self.train
            if self.tokens >= self.run.settings["shard_tokens"] or at_border:
                self.close()

    def close(self) -> None:
        """Write what is collected as a shard, then note it as done."""
        if not self.held:
            return
        rows = self.progress.shards[self.split]
        path = self.run.out / f"{self.split}-{len(rows):05d}.bin"
        checksum = write_shard(path, (part.tobytes() for part in self.parts))
        rows.append(Shard(path.name, self.held, self.tokens, checksum))
        self.document += self.held
        self.progress.after[path.name] = self.run.place(self.document)
        self.progress.write(self.run.out)
        self.parts, self.tokens, self.held = [], 0, 0


def _tokenized(tokenizer: Tokenizer, chunks: Iterable[list[bytes]], workers: int) -> Iterator[Encoded]:
    """Tokens of every chunk of documents, in order; ``workers`` threads, since the library lets go of Python's lock."""
    waiting: deque[Future[Encoded]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        for chunk in chunks:
            waiting.append(pool.submit(tokenizer.documents, chunk))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _chunks(documents: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Documents in lists that are worth a thread's turn."""
    chunk: list[bytes] = []
    size = 0
    for text in documents:
        chunk.append(text)
        size += len(text)
        if size >= _CHUNK_BYTES or len(chunk) >= _CHUNK_DOCUMENTS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _asked(
    tokenizer: TokenizerInfo, settings: Mapping[str, Any], sources: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What must be the same for a folder to be continued; files count by content, not by name."""
    content = [source.get("sha256") or source.get("fingerprint") for source in sources]
    return {"tokenizer": tokenizer.sha256, **settings, "sources": content}
