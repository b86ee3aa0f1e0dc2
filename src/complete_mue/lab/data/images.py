"""Pictures with captions: folders, arrays and Hugging Face datasets (tars are in ``tars``), sampled as text is.

A ``Collection`` knows items by number; ``ImageData`` cuts them to one size and gives shuffled, single-epoch batches
that depend on nothing but the step.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from complete_mue.errors import FileError, ShapeError
from complete_mue.lab.data.batches import ImageBatch, SampledPictures, caption_tokens, pixels
from complete_mue.lab.data.decoding import LARGEST_FILE, SUFFIXES, decode, resize
from complete_mue.lab.data.documents import HubDataset, need_column
from complete_mue.lab.data.extras import need
from complete_mue.lab.data.item_order import Choice
from complete_mue.layout.numbers import count
from complete_mue.storage import LARGEST_JSON

CAPTIONS = ("captions.jsonl", "metadata.jsonl")
LARGEST_ARRAYS = 2**35
_LARGEST_CAPTION = 2**20


class Collection(ABC):
    """Pictures with captions, by number."""

    name: str

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def caption(self, item: int) -> str:
        """The caption of an item."""

    @abstractmethod
    def picture(self, item: int) -> bytes | NDArray[np.uint8]:
        """An encoded picture, or pixels [(frames,) height, width, 3]."""

    @abstractmethod
    def where(self, item: int) -> str:
        """What an item is called in messages."""

    def stamp(self, item: int) -> int | str:
        """A size or checksum of the picture that is cheap to have."""
        return ""

    def identity(self) -> str:
        """Checksum of names, captions and stamps: says whether two collections are the same."""
        digest = hashlib.sha256(f"{type(self).__name__} {len(self)}".encode())
        for item in range(len(self)):
            name = self.where(item).removeprefix(self.name)
            digest.update(json.dumps([name, self.caption(item), self.stamp(item)]).encode("utf-8"))
        return digest.hexdigest()


class ImageFolder(Collection):
    """Pictures in a folder and the folders in it, captions in a .txt beside each or all in ``captions.jsonl``.

    ``captions.jsonl`` has one object per picture: ``{"file": "cats/1.png", "caption": "a cat"}`` (``file_name`` and
    ``text`` are understood too). Pictures are sorted by path.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.name = self.folder.as_posix()
        if not self.folder.is_dir():
            raise FileError(f"{folder}: no such folder; give one with pictures ({', '.join(SUFFIXES)}) and captions")
        listed = next((self.folder / name for name in CAPTIONS if (self.folder / name).is_file()), None)
        self._items = self._listed(listed) if listed else self._beside()
        if not self._items:
            raise FileError(f"{folder}: no pictures; a picture ends in {', '.join(SUFFIXES)}")

    def _beside(self) -> list[tuple[Path, str]]:
        found = sorted(path for path in self.folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
        return [(path, _caption_file(path)) for path in found]

    def _listed(self, table: Path) -> list[tuple[Path, str]]:
        if table.stat().st_size > LARGEST_JSON:
            raise FileError(f"{table}: larger than {LARGEST_JSON} bytes; split the folder")
        items = []
        for number, line in enumerate(table.read_bytes().splitlines(), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                file = row["file"] if "file" in row else row["file_name"]
                caption = row["caption"] if "caption" in row else row["text"]
                inside = PurePosixPath(file)
            except (ValueError, KeyError, TypeError, RecursionError):
                raise FileError(
                    f'{table}:{number}: write one object per line, such as {{"file": "1.png", "caption": "a cat"}}'
                ) from None
            if inside.is_absolute() or ".." in inside.parts or "\\" in file or "\0" in file:
                raise FileError(f"{table}:{number}: file {file!r} points out of the folder; give a path inside it")
            if not (self.folder / inside).is_file():
                raise FileError(f"{table}:{number}: no picture {file!r} in the folder")
            items.append((self.folder / inside, caption_text(caption, f"{table}:{number}")))
        return sorted(items, key=lambda item: item[0])

    def __len__(self) -> int:
        return len(self._items)

    def caption(self, item: int) -> str:
        """From the .txt or the table."""
        return self._items[item][1]

    def picture(self, item: int) -> bytes:
        """The file's bytes."""
        return _read(self._items[item][0], LARGEST_FILE)

    def where(self, item: int) -> str:
        """The file's path."""
        return self._items[item][0].as_posix()

    def stamp(self, item: int) -> int:
        """The file's size."""
        return self._items[item][0].stat().st_size


class ImageArrays(Collection):
    """``images`` uint8 [n, (frames,) height, width, 3] in an .npz, captions in a JSON list in the same order.

    The list holds texts, or objects with ``caption``. Without a path for it, it is looked for beside the .npz.
    """

    def __init__(self, arrays: str | Path, captions: str | Path | None = None) -> None:
        path = Path(arrays)
        self.name = path.as_posix()
        self._images = _load_arrays(path)
        table = Path(captions) if captions is not None else path.with_suffix(".json")
        self._captions = _caption_list(table)
        if len(self._captions) != len(self._images):
            raise FileError(f"{table}: {len(self._captions)} captions, but {path} holds {len(self._images)} images")

    def __len__(self) -> int:
        return len(self._images)

    def caption(self, item: int) -> str:
        """From the list."""
        return self._captions[item]

    def picture(self, item: int) -> NDArray[np.uint8]:
        """Pixels."""
        return self._images[item]

    def where(self, item: int) -> str:
        """Number in the array."""
        return f"{self.name}, image {item}"

    def stamp(self, item: int) -> str:
        """Checksum of the pixels."""
        return hashlib.sha256(self._images[item].tobytes()).hexdigest()


class HubImages(Collection):
    """A Hugging Face dataset with an image and a caption column; a name on the hub or a local path."""

    def __init__(
        self,
        path: str | Path | HubDataset,
        *,
        config: str | None = None,
        split: str = "train",
        image_key: str = "image",
        caption_key: str = "text",
    ) -> None:
        source = path if isinstance(path, HubDataset) else HubDataset(str(path).removeprefix("hf:"), config, split)
        self.name = str(source)
        dataset = source.load()
        for key, option in ((image_key, "image_key"), (caption_key, "caption_key")):
            need_column(key, dataset.column_names, str(source), option)
        # Undecoded, so that pictures pass through our own bounds.
        library = need("datasets", "Hugging Face images")
        self._images = dataset.select_columns([image_key]).cast_column(image_key, library.Image(decode=False))
        self._captions = dataset.select_columns([caption_key])
        self._image_key, self._caption_key = image_key, caption_key
        self._fingerprint = str(dataset._fingerprint)

    def __len__(self) -> int:
        return len(self._images)

    def identity(self) -> str:
        """The dataset's fingerprint."""
        return hashlib.sha256(f"{self._fingerprint} {len(self)}".encode()).hexdigest()

    def caption(self, item: int) -> str:
        """From its column; of several captions the first."""
        value = self._captions[item][self._caption_key]
        return caption_text(value[0] if isinstance(value, list) and value else value, self.where(item))

    def picture(self, item: int) -> bytes:
        """The stored bytes, or those of the file that the row names."""
        value = self._images[item][self._image_key]
        if not isinstance(value, dict) or not (value.get("bytes") or value.get("path")):
            raise FileError(f"{self.where(item)}: has no picture; remove the row")
        return value["bytes"] or _read(Path(value["path"]), LARGEST_FILE)

    def where(self, item: int) -> str:
        """Row of the dataset."""
        return f"{self.name}, row {item}"


class ImageData(SampledPictures):
    """Batches of a collection, all pictures of one size.

    ``size`` is one number or (height, width). ``frames`` makes clips out of animations. ``workers`` threads decode;
    batches do not depend on them.
    """

    def __init__(
        self,
        collection: Collection,
        *,
        size: int | tuple[int, int],
        rows: int,
        text_length: int = 128,
        frames: int | None = None,
        workers: int = 1,
        **choice: Unpack[Choice],
    ) -> None:
        height, width = (size, size) if isinstance(size, int) else size
        self.size = count("size", height), count("size", width)
        self.collection, self.text_length = collection, count("text_length", text_length)
        self.frames = frames if frames is None else count("frames", frames)
        super().__init__(len(collection), rows, collection.name, **choice)
        self._pool = ThreadPoolExecutor(workers) if count("workers", workers) > 1 else None

    def identity(self) -> str:
        """What the items are made of, and which of them."""
        return f"{self.collection.identity()} {self.size} {self.frames} {self._first} {self.items}"

    def captions(self, items: NDArray[np.int64]) -> list[str]:
        """Their captions."""
        return [self.collection.caption(self._first + item) for item in items.tolist()]

    def at(self, items: NDArray[np.int64]) -> ImageBatch:
        """Load and cut the items of these numbers."""
        numbers = [self._first + item for item in items.tolist()]
        images = list(map(self._load, numbers) if self._pool is None else self._pool.map(self._load, numbers))
        return ImageBatch(pixels(np.stack(images)), caption_tokens(self.captions(items), self.text_length))

    def _load(self, number: int) -> NDArray[np.uint8]:
        picture, where = self.collection.picture(number), self.collection.where(number)
        if isinstance(picture, bytes):
            return decode(picture, where, self.size, self.frames)
        if (picture.ndim == 4) != (self.frames is not None):
            raise ShapeError(f"{where}: shape {picture.shape}; frames are for clips [frames, height, width, 3] only")
        if self.frames is not None:
            picture = picture[np.linspace(0, len(picture) - 1, self.frames).round().astype(int)]
        return resize(picture, self.size)


def _read(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as problem:
        raise FileError(f"{path}: {problem.strerror or problem}") from None
    if len(content) > limit:
        raise FileError(f"{path}: larger than {limit} bytes; make it smaller")
    return content


def caption_text(value: Any, where: str) -> str:
    """The value, if it is a text."""
    if not isinstance(value, str):
        raise FileError(f"{where}: the caption is {str(value)[:40]!r}, not a text")
    return value.strip()


def _caption_file(picture: Path) -> str:
    path = picture.with_suffix(".txt")
    if not path.is_file():
        raise FileError(f"{picture}: no caption; write it into {path.name} beside it, or all into {CAPTIONS[0]}")
    try:
        return _read(path, _LARGEST_CAPTION).decode("utf-8").strip()
    except UnicodeDecodeError as problem:
        raise FileError(f"{path}: not UTF-8 text ({problem.reason}); save it as UTF-8") from None


def _caption_list(path: Path) -> Sequence[str]:
    try:
        rows = json.loads(_read(path, LARGEST_JSON).decode("utf-8"))
        if not isinstance(rows, list):
            raise TypeError(f"a {type(rows).__name__}, not a list")
        captions = [row["caption"] if isinstance(row, dict) else row for row in rows]
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        if isinstance(problem, FileError):
            raise
        raise FileError(f"{path}: not a JSON list of captions or of objects with 'caption' ({problem})") from None
    return [caption_text(caption, f"{path}, entry {number}") for number, caption in enumerate(captions)]


def _load_arrays(path: Path) -> NDArray[np.uint8]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: info.file_size for info in archive.infolist()}
        if "images.npy" not in members:
            raise FileError(f"{path}: has no array 'images', only {', '.join(list(members)[:10]) or 'nothing'}")
        if members["images.npy"] > LARGEST_ARRAYS:
            raise FileError(f"{path}: unpacks to more than {LARGEST_ARRAYS} bytes; use WebDataset tars")
        with np.load(path, allow_pickle=False) as archive:
            images: NDArray[np.uint8] = archive["images"]
    except FileError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, MemoryError, NotImplementedError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise FileError(f"{path}: not an .npz of images ({reason})") from None
    if images.dtype != np.uint8 or images.ndim not in (4, 5) or images.shape[-1] != 3 or not images.size:
        raise FileError(
            f"{path}: images are {images.dtype} {list(images.shape)}; store uint8 [n, (frames,) height, width, 3]"
        )
    return images
