"""Gather English text from the package registry that pip is set up for: documentation, docstrings, some sources.

    python scripts/gather_text.py --out runs/text --tokens-goal 250e6
    mue data prepare runs/text/part-*.txt.xz --separator '\\n\\n\\n' --held-out 0.02 --tokenizer FILE --out runs/data

``--packages`` is a file of names, one per line; ``name-*`` stands for all that begin so, # begins a comment. Of each,
the newest source archive (else a wheel) is read in memory: nothing in it is run, unpacked to disk or followed. Packages
whose metadata do not name a permissive licence (MIT, BSD, Apache, PSF, ISC, MPL, public domain) are left out, and so
are bundled copies of others, tests and translations.

Prose (.rst, .md, .txt, docstrings, and descriptions in JSON files of interfaces) is kept paragraph by paragraph, each
once: a paragraph is known if half of its six-word shingles are. Whole .py files are kept while they are less than
``--code-share`` of all text. What a package gave is one file in ``--cache``, written whole, so a second start goes on.
At the end all documents, in an order by their hash, go into parts of at most 30 MB, and ``manifest.json`` says what is
from where.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import html
import io
import json
import lzma
import re
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from email import message_from_string
from fnmatch import translate
from inspect import cleandoc
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from complete_mue.storage import exclusive, sha256, whole, write_json

SEPARATOR = "\n\n\n"
LARGEST_PART = 30_000_000
_ROUGH_PART = 90_000_000  # bytes of text that xz makes a little smaller than that
_LARGEST_ARCHIVE, _LARGEST_UNPACKED, _MOST_MEMBERS = 120_000_000, 3_000_000_000, 200_000
_SUFFIXES = (".rst", ".md", ".txt", ".py", ".json")
_LARGEST_FILE = {".json": 16_000_000, ".py": 2_000_000}
_LARGEST_TEXT, _LARGEST_DOCUMENT, _SMALLEST = 1_000_000, 64_000, 300
_CODE_PER_PACKAGE = 1_500_000
_ALLOWED = re.compile(
    r"\b(MIT|X11|0?BSD|Apache|PSF|Python Software Foundation|ISC|MPL|Mozilla Public|Public Domain|Unlicense|CC0)\b",
    re.I,
)
_REFUSED = re.compile(r"GPL|General Public|Proprietary|commercial|Commons Clause|SSPL|BUSL|CC[- ]BY|Business", re.I)
_LEFT_OUT = re.compile(
    r"(^|/)(tests?|testing|_?vendor(ed)?|third_?party|extern(al)?s?|node_modules|locales?|translations?|licenses?"
    r"|[^/]*\.egg-info|i18n|po)/|(^|/)(LICEN[CS]E|COPYING|NOTICE|AUTHORS|CONTRIBUTORS|THANKS|MAINTAINERS|requirements"
    r"|constraints|SOURCES|test_|conftest|top_level|entry_points|RECORD|robots|CODE_OF_CONDUCT)[^/]*$",
    re.I,
)
_COMMON = {
    "the", "of", "to", "a", "an", "and", "is", "in", "that", "for", "be", "are", "this", "it", "with", "as", "on", "by",
    "or", "not", "if", "can",
}  # fmt: skip
_LETTERS = "".join(chr(n).lower() if chr(n).isalpha() else " " for n in range(128))  # of str.translate: the rest stays
_BLANK, _TAG = re.compile(r"\n\s*\n"), re.compile(r"<[^<>]{1,300}>")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_LINK = re.compile(r"""<a\s([^>]*?)href=["']([^"'>]+)["']([^>]*)>""")
_DOCSTRING = re.compile(r"""^[ \t]*[rRuU]?(\"\"\"|\'\'\')(.*?)\1""", re.M | re.S)
_CONTROL, _TRAILING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]"), re.compile(r"[ \t]+$", re.M)


@dataclass
class Group:
    """What one package gave, or why nothing."""

    package: str
    version: str = ""
    file: str = ""
    sha256: str = ""
    licence: str = ""
    skipped: str = ""
    prose_bytes: int = 0
    code_bytes: int = 0
    documents: list[str] = field(default_factory=list)

    def about(self) -> dict[str, Any]:
        """All but the text; the number of documents instead."""
        return {name: value for name, value in asdict(self).items() if value} | {"documents": len(self.documents)}


class Seen:
    """Which shingles have been seen: one bit for each 32-bit checksum."""

    def __init__(self) -> None:
        self._bits = bytearray(2**29)

    def takes(self, text: str) -> bool:
        """Remember a text, unless half of it is known."""
        bits, found = self._bits, marks(text)
        if found and 2 * sum(bits[mark >> 3] >> (mark & 7) & 1 for mark in found) >= len(found):
            return False
        for mark in found:
            bits[mark >> 3] |= 1 << (mark & 7)
        return True

    def paragraphs(self, text: str) -> str:
        """Those that are new."""
        return "\n\n".join(filter(self.takes, text.split("\n\n")))


def marks(text: str) -> list[int]:
    """Checksums of the six words from each long word on, or of the whole; punctuation and numbers do not count."""
    words = _words(text)
    starts = [n for n, word in enumerate(words[:-5]) if len(word) >= 7] or ([0] if len(words) > 3 else [])
    size = 6 if len(words) > 6 else len(words)
    return [zlib.crc32(" ".join(words[n : n + size]).encode()) for n in starts]


def _words(text: str) -> list[str]:
    return text.translate(_LETTERS).split()


def licence_of(metadata: str) -> tuple[str, bool]:
    """What the metadata say, the most exact field first, and whether that is permissive."""
    fields = message_from_string(metadata)
    classifiers = [text for text in fields.get_all("Classifier", []) if text.startswith("License ::")]
    named = "; ".join(text.split(" :: ")[-1] for text in classifiers if text.count("::") > 1)
    short = (fields.get("License") or "").strip().splitlines()[:1]
    said = next((text for text in (fields.get("License-Expression"), named, *short) if text and text != "UNKNOWN"), "")
    return said[:120], bool(_ALLOWED.search(said)) and not _REFUSED.search(said)


def members(name: str, archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of the plain files that may hold text; the rest is not read. Archives too large are cut."""
    unpacked = 0
    for number, (inside, size, read) in enumerate(_listed(name, archive)):
        unpacked += size
        if number > _MOST_MEMBERS or unpacked > _LARGEST_UNPACKED:
            return
        suffix = PurePosixPath(inside).suffix.lower()
        metadata = PurePosixPath(inside).name in ("PKG-INFO", "METADATA")
        may_hold = metadata or (suffix in _SUFFIXES and not _LEFT_OUT.search(inside))
        if may_hold and size <= _LARGEST_FILE.get(suffix, _LARGEST_TEXT):
            yield inside, read()


def _listed(name: str, archive: bytes) -> Iterator[tuple[str, int, Any]]:
    if name.endswith((".whl", ".zip")):
        with zipfile.ZipFile(io.BytesIO(archive)) as packed:
            for entry in packed.infolist():
                if not entry.is_dir():
                    yield entry.filename, entry.file_size, lambda entry=entry: _exactly(packed, entry)
        return
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r|*") as tar:
        for member in tar:
            if member.isreg() and not member.issparse():
                yield member.name, member.size, lambda member=member: (tar.extractfile(member) or io.BytesIO()).read()
            tar.members.clear()  # type: ignore[attr-defined]  # else it keeps every header


def _exactly(packed: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    with packed.open(entry) as file:
        return file.read(entry.file_size)  # no more than it says


def plain(content: bytes) -> str:
    """Text without control characters, trailing blanks and more than one empty line in a row; nothing if not text."""
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return ""
    return tidy(text)


def tidy(text: str) -> str:
    """As of ``plain``."""
    return _BLANK.sub("\n\n", _TRAILING.sub("", _CONTROL.sub("", text))).strip()


def is_english(text: str) -> bool:
    """By its most common words; tables, lists of names and other languages have too few."""
    sample = text[:8_000]
    words = _words(sample)
    english = sum(map(_COMMON.__contains__, words)) > 0.12 * len(words)
    return len(words) > 30 and english and len(sample.encode()) < 1.03 * len(sample)


def docstrings(source: str) -> str:
    """The long strings that begin a line, one after another: docstrings, found without parsing."""
    found = (cleandoc(match[2]) for match in _DOCSTRING.finditer(source))
    return tidy("\n\n".join(text for text in found if len(text) >= 60))


def descriptions(content: bytes) -> str:
    """What a JSON file says under "documentation" and "description", without markup."""
    try:
        waiting: list[Any] = [json.loads(content)]
    except (ValueError, RecursionError):
        return ""
    found = []
    while waiting:
        match waiting.pop():
            case dict() as entries:
                for key, value in entries.items():
                    if isinstance(value, str) and key in ("documentation", "description") and len(value) >= 60:
                        found.append(tidy(html.unescape(_TAG.sub(" ", value.replace("</p>", "\n\n")))))
                    elif isinstance(value, dict | list):
                        waiting.append(value)
            case list() as entries:
                waiting += entries
            case _:
                pass
    return tidy("\n\n".join(found).replace("  ", " "))


def pieces(text: str) -> Iterator[str]:
    """Cut between paragraphs into documents that are not too large."""
    pending: list[str] = []
    size = 0
    for paragraph in text.split("\n\n"):
        if pending and size + len(paragraph) > _LARGEST_DOCUMENT:
            yield "\n\n".join(pending)
            pending, size = [], 0
        pending.append(paragraph)
        size += len(paragraph)
    yield "\n\n".join(pending)


def take(group: Group, archive: bytes, seen: Seen, code_room: int) -> Group:
    """Fill a group with what is new in its archive."""
    read = list(members(group.file, archive))
    metadata = [plain(content) for name, content in read if PurePosixPath(name).name in ("PKG-INFO", "METADATA")]
    group.licence, free = licence_of(metadata[0] if metadata else "")
    if not free:
        group.skipped = f"licence: {group.licence or 'none named'}"
        return group
    room = min(code_room, _CODE_PER_PACKAGE)
    for name, content in sorted(read, key=lambda entry: PurePosixPath(entry[0]).suffix == ".py"):  # prose first
        suffix = PurePosixPath(name).suffix.lower()
        if suffix == ".json":
            text = descriptions(content)
        else:
            text = plain(content)
            if suffix not in _SUFFIXES:
                text = text.partition("\n\n")[2]  # after the fields of the metadata
            elif suffix == ".py":
                if _SMALLEST < len(text) <= room - group.code_bytes and text.isascii() and seen.takes(text):
                    group.code_bytes += len(text)
                    group.documents.append(text)
                    continue
                text = docstrings(text)
        if len(text) < _SMALLEST or not is_english(text):
            continue
        text = seen.paragraphs(text)
        if len(text) >= _SMALLEST and is_english(text):
            group.prose_bytes += len(text.encode())
            group.documents.extend(pieces(text))
    return group


class Registry:
    """The registry that pip is set up for."""

    def __init__(self) -> None:
        asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
        said = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
        if not said:
            from pip._internal.models.index import PyPI  # its default

            said = PyPI.simple_url
        self._url = said.rstrip("/") + "/"

    def _links(self, page: str) -> list[str]:
        tags = _LINK.findall(_get(self._url + page, "text/html").decode())
        return [html.unescape(link) for before, link, after in tags if "data-yanked" not in before + after]

    def names(self) -> list[str]:
        """Of all packages."""
        return [link.rstrip("/").rpartition("/")[2] for link in self._links("")]

    def newest(self, package: str) -> tuple[Group, bytes]:
        """The newest archive of sources, else a wheel."""
        group = Group(package)
        try:
            ranked = sorted((rank, link) for link in self._links(f"{package}/") if (rank := _rank(link)))
            if not ranked:
                group.skipped = "no archive"
                return group, b""
            link, part = urldefrag(urljoin(f"{self._url}{package}/", ranked[-1][1]))
            group.file, group.version = link.rpartition("/")[2], str(ranked[-1][0][1])
            archive = _get(link, "*/*")
        except (OSError, ValueError) as problem:
            gone = isinstance(problem, urllib.error.HTTPError) and problem.code == 404
            group.skipped = "not there" if gone else f"download: {type(problem).__name__} {problem}"
            return group, b""
        group.sha256 = hashlib.sha256(archive).hexdigest()
        if part.startswith("sha256=") and part[7:] != group.sha256:
            group.skipped = "download: checksum"
        return group, archive


def _rank(link: str) -> tuple[bool, Version, bool] | None:
    """No pre-release before one; newest; an archive of sources before a wheel. Nothing for other files."""
    name = unquote(urldefrag(link)[0].rpartition("/")[2])
    try:
        version = parse_wheel_filename(name)[1] if name.endswith(".whl") else parse_sdist_filename(name)[1]
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None
    return not version.is_prerelease, version, not name.endswith(".whl")


def _get(url: str, accept: str) -> bytes:
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=120) as reply:
        content: bytes = reply.read(_LARGEST_ARCHIVE + 1)
    if len(content) > _LARGEST_ARCHIVE:
        raise ValueError("too large")
    return content


def wanted(listed: Path, registry: Registry) -> list[str]:
    """The file's names, those of a pattern in order; each once."""
    lines = [line.partition("#")[0].strip() for line in listed.read_text(encoding="utf-8").splitlines()]
    known = sorted(registry.names()) if any("*" in line for line in lines) else []
    found = (filter(re.compile(translate(line)).match, known) if "*" in line else [line] for line in lines if line)
    return list(dict.fromkeys(name for names in found for name in names if _NAME.fullmatch(name)))


def save(cache: Path, group: Group) -> None:
    """One file per package: a line about it, then one per document."""
    with whole(cache / f"{group.package}.jsonl.gz") as file, gzip.open(file, "wt", 5, encoding="utf-8") as packed:
        for entry in (group.about() | {"documents": []}, *group.documents):
            packed.write(json.dumps(entry) + "\n")


def load(path: Path) -> Group:
    """What ``save`` wrote."""
    with gzip.open(path, "rt", encoding="utf-8") as packed:
        group = Group(**json.loads(next(packed)))
        group.documents = [json.loads(line) for line in packed]
    return group


def gather(given: argparse.Namespace, registry: Registry) -> None:
    """Fill the cache until the goal is reached, the names end or the time is over."""
    began, seen, prose, code = time.monotonic(), Seen(), 0, 0
    for path in sorted(given.cache.glob("*.jsonl.gz")):
        group = load(path)
        prose, code = prose + group.prose_bytes, code + group.code_bytes
        for document in group.documents:
            seen.paragraphs(document)
    waiting = deque(n for n in wanted(given.packages, registry) if not (given.cache / f"{n}.jsonl.gz").is_file())
    ahead: deque[Future[tuple[Group, bytes]]] = deque()
    with ThreadPoolExecutor(4) as pool:
        while (waiting or ahead) and prose + code < given.tokens_goal * given.bytes_per_token:
            if time.monotonic() - began > given.seconds:
                break
            while waiting and len(ahead) < 6:
                ahead.append(pool.submit(registry.newest, waiting.popleft()))
            group, archive = ahead.popleft().result()
            if not group.skipped:
                try:
                    share = given.code_share
                    group = take(group, archive, seen, int(share / (1 - share) * prose) - code)
                except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError) as problem:
                    group = Group(group.package, group.version, group.file, skipped=f"damaged: {problem}")
            prose, code = prose + group.prose_bytes, code + group.code_bytes
            if not group.skipped.startswith("download"):  # those are tried again
                save(given.cache, group)
            tokens = (prose + code) / given.bytes_per_token
            gain = f"{group.prose_bytes / 1e6:6.2f} + {group.code_bytes / 1e6:.2f} MB"
            print(f"{tokens / 1e6:7.1f} M tokens  {group.skipped or gain:30}  {group.package}", flush=True)
        for future in ahead:
            future.cancel()


def pack(out: Path, cache: Path, bytes_per_token: float) -> None:
    """All documents of the cache into parts, in the order of their hashes, and the manifest."""
    groups, hashed = [], []
    for path in sorted(cache.glob("*.jsonl.gz")):
        group = load(path)
        groups.append(group.about())
        hashed += [(hashlib.blake2b(text.encode(), digest_size=8).digest(), text) for text in group.documents]
    texts = [text for _, text in sorted(hashed)]
    total = sum(len(text.encode()) for text in texts)
    for old in out.glob("part-*.txt.xz"):
        old.unlink()
    parts = [_write(out / f"part-{n:03d}.txt.xz", each) for n, each in enumerate(_divided(texts, total))]
    kept = [group for group in groups if "skipped" not in group]
    kinds = {kind: sum(group.get(kind, 0) for group in kept) for kind in ("prose_bytes", "code_bytes")}
    estimate = {"documents": len(texts), "bytes": total, **kinds, "tokens_estimated": round(total / bytes_per_token)}
    skipped = [group for group in groups if "skipped" in group]
    write_json(
        out / "manifest.json", {**estimate, "separator": SEPARATOR, "parts": parts, "groups": kept, "left_out": skipped}
    )
    print(f"{len(kept)} packages, {len(skipped)} left out, {total / 1e6:.0f} MB in {len(parts)} parts,", end=" ")
    print(f"{total / bytes_per_token / 1e6:.0f} M tokens, {kinds['code_bytes'] / max(total, 1):.0%} of it code")


def _divided(texts: Sequence[str], total: int) -> Iterator[Sequence[str]]:
    """As many equal runs of documents as make parts small enough."""
    number = max(1, -(-total // _ROUGH_PART))
    for n in range(number):
        yield texts[n * len(texts) // number : (n + 1) * len(texts) // number]


def _write(path: Path, texts: Sequence[str]) -> dict[str, Any]:
    with whole(path) as file, lzma.open(file, "wb", preset=3) as packed:
        for n, text in enumerate(texts):
            packed.write(((SEPARATOR if n else "") + text).encode())
    if path.stat().st_size > LARGEST_PART:
        raise SystemExit(f"{path}: {path.stat().st_size} bytes, more than {LARGEST_PART}: make _ROUGH_PART smaller")
    return {"file": path.name, "bytes": path.stat().st_size, "documents": len(texts), "sha256": sha256(path)}


def main() -> int:
    """Gather, then pack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/text"))
    parser.add_argument("--cache", type=Path, help="what each package gave; default: OUT-cache")
    parser.add_argument("--packages", type=Path, default=Path(__file__).with_name("text_packages.txt"))
    parser.add_argument("--tokens-goal", type=float, default=250e6, help="stop gathering at so many, estimated")
    parser.add_argument("--bytes-per-token", type=float, default=3.7, help="of text like this, by GPT-NeoX's")
    parser.add_argument("--code-share", type=float, default=0.3, help="at most so much of the text is whole .py files")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="gather no longer, then pack")
    given = parser.parse_args()
    given.cache = given.cache or given.out.with_name(f"{given.out.name}-cache")
    with exclusive(given.cache, "another gathering"):
        given.out.mkdir(parents=True, exist_ok=True)
        gather(given, Registry())
        pack(given.out, given.cache, given.bytes_per_token)
    return 0


if __name__ == "__main__":
    sys.exit(main())
