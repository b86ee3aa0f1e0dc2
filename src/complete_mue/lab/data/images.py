"""Pictures with captions: folders, arrays and Hugging Face datasets (tars are in ``tars``), sampled as text is.

A ``Collection`` lists its items; ``ImageData`` cuts them to one size and gives shuffled, single-epoch batches that
depend on nothing but the step.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from complete_mue.errors import FileError, ShapeError
from complete_mue.lab.data.batches import ImageBatch, Pictures, caption_tokens, pixels
from complete_mue.lab.data.decoding import LARGEST_FILE, SUFFIXES, decode, resize
from complete_mue.lab.data.documents import HubDataset, need_column
from complete_mue.lab.data.extras import in_our_words, need
from complete_mue.lab.data.item_order import Order, Shuffled
from complete_mue.lab.data.text_files import json_lines, unpacked
from complete_mue.layout.numbers import count
from complete_mue.storage import read_bytes

CAPTIONS = ("captions.jsonl", "metadata.jsonl")
LARGEST_ARRAYS = 2**35
_LARGEST_CAPTION = 2**20


@dataclass(frozen=True)
class Item:
    """A captioned picture. ``stamp`` is a size or checksum of it; ``read`` gives an encoded picture, or pixels
    [(frames,) height, width, 3].
    """

    name: str  # what it is called in messages
    caption: str
    stamp: int | str
    read: Callable[[], bytes | NDArray[np.uint8]]


class Collection:
    """Captioned pictures, by number."""

    def __init__(self, name: str, items: Sequence[Item]) -> None:
        self.name, self.items = name, items
        if not items:
            raise FileError(f"{name}: no pictures; a picture ends in {', '.join(SUFFIXES)}")

    def identity(self) -> str:
        """Checksum of names, captions and stamps: says whether two collections are the same."""
        digest = hashlib.sha256(f"{type(self).__name__} {len(self.items)}".encode())
        for item in self.items:
            digest.update(json.dumps([self.inside(item.name), item.caption, item.stamp]).encode("utf-8"))
        return digest.hexdigest()

    def inside(self, name: str) -> str:
        """An item's name without the place of the collection: moved, it is the same."""
        return name.removeprefix(self.name)


class ImageFolder(Collection):
    """Pictures in a folder and the folders in it, captions in a .txt beside each or all in ``captions.jsonl``.

    ``captions.jsonl`` has one object per picture: ``{"file": "cats/1.png", "caption": "a cat"}`` (``file_name`` and
    ``text`` are understood too). Pictures are sorted by path.
    """

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        if not folder.is_dir():
            raise FileError(f"{folder}: no such folder; give one with pictures ({', '.join(SUFFIXES)}) and captions")
        table = next((folder / name for name in CAPTIONS if (folder / name).is_file()), None)
        found = _listed(folder, table) if table else ((path, _caption_file(path)) for path in pictures_in(folder))
        items = [
            Item(path.as_posix(), caption, path.stat().st_size, partial(_picture, path))
            for path, caption in sorted(found, key=itemgetter(0))
        ]
        super().__init__(folder.as_posix(), items)


def pictures_in(folder: Path) -> Iterator[Path]:
    """The pictures of a folder and of those in it."""
    return (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def _listed(folder: Path, table: Path) -> Iterator[tuple[Path, str]]:
    with unpacked(table) as (_, file):
        for where, row in json_lines(file, table):
            try:
                name = row["file"] if "file" in row else row["file_name"]
                caption = row["caption"] if "caption" in row else row["text"]
                inside = PurePosixPath(name)
            except (KeyError, TypeError):
                raise FileError(f'{where}: write it as {{"file": "1.png", "caption": "a cat"}}') from None
            if inside.is_absolute() or ".." in inside.parts or "\\" in name or "\0" in name:
                raise FileError(f"{where}: file {name!r} points out of the folder; give a path inside it")
            if not (folder / inside).is_file():
                raise FileError(f"{where}: no picture {name!r} in the folder")
            yield folder / inside, caption_text(caption, where)


class ImageArrays(Collection):
    """``images`` uint8 [n, (frames,) height, width, 3] in an .npz, captions in a JSON list of the same name beside it.

    The list holds texts, or objects with ``caption``, in the order of the images.
    """

    def __init__(self, arrays: str | Path) -> None:
        path = Path(arrays)
        images, table = _load_arrays(path), path.with_suffix(".json")
        captions = _caption_list(table)
        if len(captions) != len(images):
            raise FileError(f"{table}: {len(captions)} captions, but {path} holds {len(images)} images")
        items = []
        for number, caption in enumerate(captions):
            stamp = hashlib.sha256(images[number].tobytes()).hexdigest()
            where = f"{path.as_posix()}, image {number}"
            items.append(Item(where, caption, stamp, partial(images.__getitem__, number)))
        super().__init__(path.as_posix(), items)


class HubImages(Collection):
    """A Hugging Face dataset with an image and a caption column; a name on the hub or a local path."""

    def __init__(
        self,
        path: str | Path,
        *,
        config: str | None = None,
        split: str = "train",
        image_key: str = "image",
        caption_key: str = "text",
    ) -> None:
        source = HubDataset(str(path).removeprefix("hf:"), config, split)
        dataset = source.load()
        for key, option in ((image_key, "image_key"), (caption_key, "caption_key")):
            need_column(key, dataset.column_names, str(source), option)
        # Undecoded, so that pictures pass through our own bounds.
        library = need("datasets", "Hugging Face images")
        images = dataset.select_columns([image_key]).cast_column(image_key, library.Image(decode=False))
        items = []
        for number, caption in enumerate(dataset[caption_key]):
            where = f"{source}, row {number}"
            first = caption[0] if isinstance(caption, list) and caption else caption
            read = partial(_stored_picture, images, image_key, number, where)
            items.append(Item(where, caption_text(first, where), "", read))
        super().__init__(str(source), items)
        self._fingerprint = str(dataset._fingerprint)

    def identity(self) -> str:
        """The dataset's fingerprint."""
        return hashlib.sha256(f"{self._fingerprint} {len(self.items)}".encode()).hexdigest()


def _stored_picture(images: Any, key: str, number: int, where: str) -> bytes:
    """A dataset's stored bytes, or those of the file that the row names."""
    value = images[number][key]
    if not isinstance(value, dict) or not (value.get("bytes") or value.get("path")):
        raise FileError(f"{where}: has no picture; remove the row")
    return value["bytes"] or _picture(Path(value["path"]))


class ImageData(Shuffled, Pictures):
    """Batches of a collection, all pictures of one ``size``. ``frames`` makes clips out of animations."""

    items: int

    def __init__(
        self,
        collection: Collection,
        *,
        size: int,
        rows: int,
        text_length: int = 128,
        frames: int | None = None,
        **order: Unpack[Order],
    ) -> None:
        self.collection, self.size = collection, (count("size", size), size)
        self.frames = frames if frames is None else count("frames", frames)
        self.image_shape = (3, *(() if frames is None else (frames,)), size, size)
        self.text_shape = (count("text_length", text_length),)
        super().__init__(len(collection.items), rows, f"{collection.name}: pictures", **order)

    def identity(self) -> str:
        """What the items are made of, and which of them."""
        return f"{self.collection.identity()} {self.size} {self.frames} 0 {self.items}"

    def captions(self, items: NDArray[np.int64]) -> list[str]:
        """Their captions."""
        return [self.collection.items[item].caption for item in items.tolist()]

    def all_captions(self) -> list[str]:
        """Of the whole collection."""
        return [item.caption for item in self.collection.items]

    def at(self, items: NDArray[np.int64]) -> ImageBatch:
        """Load and cut the items of these numbers."""
        images = np.stack([self._cut(self.collection.items[item]) for item in items.tolist()])
        return ImageBatch(pixels(images), caption_tokens(self.captions(items), *self.text_shape))

    def _cut(self, item: Item) -> NDArray[np.uint8]:
        picture = item.read()
        if isinstance(picture, bytes):
            return decode(picture, item.name, self.size, self.frames)
        if (picture.ndim == 4) != (self.frames is not None):
            raise ShapeError(
                f"{item.name}: shape {picture.shape}; frames are for clips [frames, height, width, 3] only"
            )
        if self.frames is not None:
            picture = picture[np.linspace(0, len(picture) - 1, self.frames).round().astype(int)]
        return resize(picture, self.size)


def _picture(path: Path) -> bytes:
    return read_bytes(path, "give another picture", LARGEST_FILE)


def caption_text(value: Any, where: str) -> str:
    """The value, if it is a text."""
    if not isinstance(value, str):
        raise FileError(f"{where}: the caption is {str(value)[:40]!r}, not a text")
    return value.strip()


def _caption_file(picture: Path) -> str:
    path = picture.with_suffix(".txt")
    if not path.is_file():
        raise FileError(f"{picture}: no caption; write it into {path.name} beside it, or all into {CAPTIONS[0]}")
    with in_our_words(f"{path}: not UTF-8 text", "save it as UTF-8"):
        return read_bytes(path, "give another caption", _LARGEST_CAPTION).decode("utf-8-sig").strip()


def _caption_list(path: Path) -> Sequence[str]:
    if not path.exists():
        raise FileError(f"{path}: no captions; put a JSON list of texts there, one per image")
    with in_our_words(f"{path}: not a JSON list of captions or of objects with 'caption'"):
        rows = json.loads(read_bytes(path, "give another list"))
        if not isinstance(rows, list):
            raise TypeError(f"a {type(rows).__name__}, not a list")
        captions = [row["caption"] if isinstance(row, dict) else row for row in rows]
    return [caption_text(caption, f"{path}, entry {number}") for number, caption in enumerate(captions)]


def _load_arrays(path: Path) -> NDArray[np.uint8]:
    with in_our_words(f"{path}: not an .npz of images"):
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: info.file_size for info in archive.infolist()}
        if "images.npy" not in members:
            raise FileError(f"{path}: has no array 'images', only {', '.join(list(members)[:10]) or 'nothing'}")
        if members["images.npy"] > LARGEST_ARRAYS:
            raise FileError(f"{path}: unpacks to more than {LARGEST_ARRAYS} bytes; use WebDataset tars")
        with np.load(path, allow_pickle=False) as archive:
            images: NDArray[np.uint8] = archive["images"]
    if images.dtype != np.uint8 or images.ndim not in (4, 5) or images.shape[-1] != 3 or not images.size:
        raise FileError(
            f"{path}: images are {images.dtype} {list(images.shape)}; store uint8 [n, (frames,) height, width, 3]"
        )
    return images
