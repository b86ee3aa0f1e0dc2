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
from complete_mue.lab.data.manifest import ITEM_SIZE, Manifest, Shard, Split, TokenizerInfo
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
from complete_mue.lab.records.decode import Count
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
        raise ShapeError(f"held-out fraction = {held_out!r}: give one from 0 to below 1")
    chosen = load_tokenizer(tokenizer, end_of_text=end_of_text)
    readers = open_sources(sources, text_key=text_key, separator=separator)
    settings: dict[str, Any] = {
        "text_key": text_key, "separator": separator, "shard_tokens": shard_tokens, "held_out": float(held_out),
    }  # fmt: skip
    info = TokenizerInfo.of(chosen)
    sources_now = tuple(reader.identity for reader in readers)
    asked = _asked(info, settings, sources_now)
    with TEXT.held(out), Meter(progress, sum(reader.size for reader in readers)) as meter:
        if isinstance(chosen, JsonTokenizer) and chosen.dropout:
            meter.note(f"{chosen.name}: its BPE dropout of {chosen.dropout:g} is left out; tokens may not vary")
        if (out / MANIFEST).exists():
            done = Manifest.read(out)
            refuse_other_request(out, _asked(done.tokenizer, done.settings, done.sources), asked)
            for split in done.splits:
                done.check(out, split)
            return done
        shards = _Run(out, chosen, info, readers, asked, workers, meter).finish()
        if not shards["train"]:
            names = ", ".join(reader.name for reader in readers[:3])
            raise FileError(f"{names}: no documents in it; give text that is not empty")
        splits = {split: Split.of(rows) for split, rows in shards.items() if rows}
        manifest = Manifest(info, info.dtype, settings, splits, sources_now)
        TEXT.finish(out, asdict(manifest))
        return manifest


@dataclass
class _Progress:
    """What is done: shards by split, and how many documents there are in all, where they were counted."""

    asked: dict[str, Any]
    total: Count | None = None
    shards: dict[str, list[Shard]] = field(default_factory=lambda: {split: [] for split in SPLITS})

    def __post_init__(self) -> None:
        if set(self.shards) != set(SPLITS):
            raise ShapeError(f"shards are of {', '.join(self.shards)!r:.80}, not of {', '.join(SPLITS)}")

    @property
    def listed(self) -> list[Shard]:
        """All shards, in order."""
        return [shard for split in SPLITS for shard in self.shards[split]]

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.listed)

    def write(self, folder: Path) -> None:
        write_json(folder / PROGRESS, asdict(self))


@dataclass
class _Run:
    """One call of ``prepare``, holding the folder."""

    out: Path
    tokenizer: Tokenizer
    info: TokenizerInfo
    readers: list[Reader]
    asked: dict[str, Any]
    workers: int
    meter: Meter

    def finish(self) -> dict[str, list[Shard]]:
        """Go on from what is there until all shards are written."""
        progress = self._progress()
        if isinstance(self.tokenizer, JsonTokenizer):
            with whole(self.out / TOKENIZER) as file:
                file.write(self.tokenizer.content)
        train = self._train_documents(progress)
        self.meter.begin("tokenizing")
        documents = self._documents()
        if progress.total == 1:  # of one document, the end of its text is held out
            documents = _halves(documents, self.asked["held_out"])
        chunks = _chunks(islice(documents, progress.documents, None))
        for last, parts in self._cut(_tokenized(self.tokenizer, chunks, self.workers), progress.documents, train):
            done = progress.documents
            split = "train" if train is None or done < train else "held_out"
            rows = progress.shards[split]
            path = self.out / f"{split}-{len(rows):05d}.bin"
            checksum = write_shard(path, (part.tobytes() for part in parts))
            rows.append(Shard(path.name, last - done, sum(map(len, parts)), checksum))
            progress.write(self.out)
        return progress.shards

    def _progress(self) -> _Progress:
        """What an earlier call finished, without shards that are not whole any more and those after them."""
        progress = TEXT.unfinished(_Progress(self.asked), self.out)
        if progress.documents:
            refuse_other_request(self.out, progress.asked, self.asked)
        elif progress.asked != self.asked:  # nothing would be lost: a first attempt that failed
            return _Progress(self.asked)
        size = ITEM_SIZE[self.info.dtype]
        kept = takewhile(lambda shard: is_whole(self.out / shard.file, shard.tokens * size), progress.listed)
        names = {shard.file for shard in kept}
        progress.shards = {split: [row for row in progress.shards[split] if row.file in names] for split in SPLITS}
        return progress

    def _train_documents(self, progress: _Progress) -> int | None:
        """How many documents come before the held-out ones; None for all. Counts them once."""
        share = self.asked["held_out"]
        if not share:
            return None
        if progress.total is None:
            self.meter.begin("counting")
            progress.total = sum(1 for _ in self._documents())
            progress.write(self.out)
        if progress.total < 2:
            return progress.total
        held: int = max(1, round(progress.total * share))
        if held >= progress.total:
            raise ShapeError(
                f"a held-out fraction of {share} of {progress.total} documents leaves none to train on; "
                "give more documents (text files: a separator) or a smaller fraction"
            )
        return progress.total - held

    def _cut(
        self, encoded: Iterator[Encoded], done: int, train: int | None
    ) -> Iterator[tuple[int, list[NDArray[np.unsignedinteger]]]]:
        """The tokens of each shard, which ends when enough are in, or the last document of a split; with them how many
        documents there are up to its end. ``done`` of them are in earlier shards.
        """
        dtype, full = f"<u{ITEM_SIZE[self.info.dtype]}", self.asked["shard_tokens"]
        parts, size = list[NDArray[np.unsignedinteger]](), 0
        for lengths, tokens in encoded:
            ends = np.cumsum(lengths)
            first = taken = 0  # documents and tokens of the chunk that are in shards or parts
            while first < len(lengths):
                last = min(int(np.searchsorted(ends, taken + full - size)) + 1, len(lengths))
                if train is not None and done < train:
                    last = min(last, first + train - done)
                parts.append(tokens[taken : ends[last - 1]].astype(dtype))
                size += len(parts[-1])
                done += last - first
                first, taken = last, int(ends[last - 1])
                if size >= full or done == train:
                    yield done, parts
                    parts, size = [], 0
            self.meter.at(None, len(tokens))
        if parts:
            yield done, parts

    def _documents(self) -> Iterator[bytes]:
        """All documents, from the first, without empty ones; shows how far reading is."""
        passed = 0
        for reader in self.readers:
            for position, text in reader.texts():
                if text:
                    self.meter.at(passed + position)
                    yield text
            passed += reader.size


def _halves(documents: Iterator[bytes], held_out: float) -> Iterator[bytes]:
    """A lone document as two, cut behind the line that its held-out fraction begins in."""
    for text in documents:
        middle = int(len(text) * (1 - held_out))
        border = 1 + (text.find(b"\n", middle) if b"\n" in text[middle:-1] else text.rfind(b"\n", 0, middle))
        if not 0 < border < len(text):
            raise ShapeError(f"a held-out fraction of {held_out} of one document without line breaks: give more text")
        yield text[:border]
        yield text[border:]


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
