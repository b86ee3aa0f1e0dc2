"""Pictures with captions from folders, tars, arrays and datasets; hostile files are refused by name."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from complete_mue.errors import FileError, MueError, RunError, ShapeError
from complete_mue.lab.data import HubImages, ImageArrays, ImageData, ImageFolder, ImageTars
from complete_mue.lab.data.decoding import decode

Image = pytest.importorskip("PIL.Image")

COUNT, SIZE = 24, 16


def picture(number: int) -> Any:
    """One flat colour per picture, so that each can be told from the others."""
    return np.full((SIZE, SIZE, 3), (10 * number, 255 - 10 * number, 7), np.uint8)


def encoded(pixels: Any, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims to be huge."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    )


def tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


# -- the same pictures out of every kind of collection --------------------------------------------------------------


def folder_beside(tmp_path: Path) -> ImageFolder:
    for number in range(COUNT):
        path = tmp_path / "in" / f"part{number % 2}" / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture(number)))
        path.with_suffix(".txt").write_text(f"picture {number}\n")
    return ImageFolder(tmp_path / "in")


def folder_listed(tmp_path: Path) -> ImageFolder:
    (tmp_path / "in").mkdir()
    rows = []
    for number in range(COUNT):
        (tmp_path / "in" / f"{number:03d}.png").write_bytes(encoded(picture(number)))
        keys = ("file", "caption") if number % 2 else ("file_name", "text")
        rows.append(json.dumps(dict(zip(keys, (f"{number:03d}.png", f"picture {number}"), strict=True))))
    (tmp_path / "in" / "captions.jsonl").write_text("\n".join(rows))
    return ImageFolder(tmp_path / "in")


def tars(tmp_path: Path) -> ImageTars:
    for shard in range(3):
        members = {}
        for number in range(shard * 8, shard * 8 + 8):
            members[f"dir/{number:03d}.png"] = encoded(picture(number))
            if number % 2:
                members[f"dir/{number:03d}.txt"] = f"picture {number}".encode()
            else:
                members[f"dir/{number:03d}.json"] = json.dumps({"caption": f"picture {number}"}).encode()
        members["README"] = b"ignored"
        tar(tmp_path / f"train-{shard:03d}.tar", members)
    return ImageTars(str(tmp_path / "train-{000..002}.tar"))


def arrays(tmp_path: Path) -> ImageArrays:
    np.savez_compressed(tmp_path / "a.npz", images=np.stack([picture(number) for number in range(COUNT)]))
    (tmp_path / "a.json").write_text(json.dumps([{"caption": f"picture {number}"} for number in range(COUNT)]))
    return ImageArrays(tmp_path / "a.npz")


def dataset(tmp_path: Path) -> HubImages:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    features = datasets.Features({"image": datasets.Image(), "text": datasets.Value("string")})
    rows = {
        "image": [{"bytes": encoded(picture(number)), "path": None} for number in range(COUNT)],
        "text": [f"picture {number}" for number in range(COUNT)],
    }
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "saved")
    return HubImages(tmp_path / "saved")


@pytest.mark.parametrize(
    "make", [folder_beside, folder_listed, tars, arrays, pytest.param(dataset, marks=pytest.mark.tools)]
)
def test_every_picture_once_with_its_own_caption(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    collection = make(tmp_path)
    ranks = [ImageData(collection, size=SIZE, rows=6, text_length=16, rank=rank, world=2) for rank in range(2)]
    whole = ImageData(collection, size=SIZE, rows=6, text_length=16)
    seen = []
    for step in range(len(whole)):
        batch, parts = whole.batch(step), [data.batch(step) for data in ranks]
        assert torch.equal(batch.images, torch.cat([part.images for part in parts]))
        assert torch.equal(batch.text, torch.cat([part.text for part in parts]))
        assert batch.images.shape == (6, 3, SIZE, SIZE)
        for image, text in zip(batch.images, batch.text, strict=True):
            number = int(bytes(text.tolist()).rstrip(b"\0").decode().split()[1])
            expected = torch.from_numpy(picture(number)).permute(2, 0, 1) / 127.5 - 1
            assert torch.allclose(image, expected, atol=1e-6)
            seen.append(number)
    assert sorted(seen) == list(range(COUNT))
    assert seen != sorted(seen)
    with pytest.raises(RunError, match="4 steps of 6 rows"):
        whole.batch(4)


def test_a_moved_collection_is_the_same(tmp_path: Path) -> None:
    for number, make in enumerate((folder_beside, folder_listed, tars)):
        ways = []
        for place in (f"here{number}", f"elsewhere{number}/within"):
            (tmp_path / place).mkdir(parents=True)
            ways.append(make(tmp_path / place).identity())
        assert ways[0] == ways[1], make.__name__


# -- cutting to size --------------------------------------------------------------------------------------------------


def test_a_byte_order_mark_is_no_part_of_a_caption(tmp_path: Path) -> None:
    mark = b"\xef\xbb\xbf"
    (tmp_path / "a.png").write_bytes(encoded(picture(0)))
    (tmp_path / "a.txt").write_bytes(mark + b"a cat\r\n")
    caption = mark + json.dumps({"caption": "a cat"}).encode()
    members = {
        "a.png": encoded(picture(0)),
        "a.txt": mark + b"a cat\r\n",
        "b.png": encoded(picture(1)),
        "b.json": caption,
    }
    items = [*ImageFolder(tmp_path).items, *ImageTars(tar(tmp_path / "a.tar", members)).items]
    assert [item.caption for item in items] == ["a cat"] * 3


def test_pictures_are_scaled_to_cover_and_cut_around_the_middle() -> None:
    wide = np.zeros((20, 60, 3), np.uint8)
    wide[:, 20:40] = 200  # the middle square
    wide[:, :20, 0] = 255
    cut = decode(encoded(wide), "x", (10, 10))
    assert cut.shape == (10, 10, 3)
    assert (abs(cut[1:-1, 1:-1].astype(int) - 200) < 3).all()
    assert decode(encoded(wide), "x", (10, 30)).shape == (10, 30, 3)
    assert decode(encoded(wide), "x", (10, 30))[5, 2, 0] > 250


def test_transparent_parts_become_white_and_modes_become_rgb() -> None:
    clear = np.zeros((8, 8, 4), np.uint8)
    clear[:, :4] = (255, 0, 0, 255)
    cut = decode(encoded(clear), "x", (8, 8))
    assert cut[0, 0].tolist() == [255, 0, 0]
    assert cut[0, 7].tolist() == [255, 255, 255]
    assert decode(encoded(np.full((8, 8), 99, np.uint8)), "x", (8, 8))[0, 0].tolist() == [99, 99, 99]
    assert decode(encoded(picture(3), "JPEG", quality=95), "x", (8, 8)).shape == (8, 8, 3)


def test_gray_of_sixteen_bits_keeps_its_levels() -> None:
    image = pytest.importorskip("PIL.Image")
    eight = np.arange(256, dtype=np.uint8).reshape(16, 16)
    content = io.BytesIO()
    image.fromarray(eight.astype(np.uint16) * 257).save(content, "PNG")
    assert (decode(content.getvalue(), "a", (16, 16)) == eight[..., None]).all()


def test_clips_from_animations_and_arrays(tmp_path: Path) -> None:
    frames = [Image.fromarray(picture(number)) for number in range(0, 20, 4)]
    (tmp_path / "in").mkdir()
    frames[0].save(tmp_path / "in" / "a.gif", save_all=True, append_images=frames[1:], duration=50)
    (tmp_path / "in" / "a.txt").write_text("a clip")
    batch = ImageData(ImageFolder(tmp_path / "in"), size=8, rows=1, frames=3).batch(0)
    assert batch.images.shape == (1, 3, 3, 8, 8)
    assert np.allclose((batch.images[0, 0, :, 4, 4].numpy() + 1) * 127.5, [0, 80, 160], atol=3)
    np.savez(tmp_path / "v.npz", images=np.stack([picture(n) for n in range(5)])[None])
    (tmp_path / "v.json").write_text('["a clip"]')
    clips = ImageArrays(tmp_path / "v.npz")
    assert ImageData(clips, size=8, rows=1, frames=5).batch(0).images.shape == (1, 3, 5, 8, 8)
    with pytest.raises(ShapeError, match="frames"):
        ImageData(clips, size=8, rows=1).batch(0)


# -- hostile and broken files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "height"), [(20_000, 20_000), (9000, 9000), (2**31 - 1, 1)])
def test_decompression_bombs_are_refused(width: int, height: int) -> None:
    with pytest.raises(FileError, match=r"evil\.png: .*67108864 pixels"):
        decode(bomb(width, height), "evil.png", (8, 8))


@pytest.mark.parametrize("name", ["../evil.png", "/etc/evil.png", "a/../../evil.png", "a\\..\\evil.png"])
def test_members_that_lead_out_of_a_tar_are_refused(tmp_path: Path, name: str) -> None:
    path = tar(tmp_path / "a.tar", {"ok.png": encoded(picture(1)), "ok.txt": b"ok", name: encoded(picture(2))})
    with pytest.raises(FileError, match=r"a\.tar: member .*refused"):
        ImageTars(path)
    assert [inside.name for inside in tmp_path.iterdir()] == ["a.tar"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        info = tarfile.TarInfo("a.png")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(FileError, match=r"member 'a\.png' .*refused"):
        ImageTars(tmp_path / "a.tar")


def test_broken_tars_are_named(tmp_path: Path) -> None:
    good = tar(tmp_path / "a.tar", {"a.png": encoded(picture(1)), "a.txt": b"one"})
    with pytest.raises(FileError, match=r"a\.png|no caption"):
        ImageTars(tar(tmp_path / "b.tar", {"a.png": encoded(picture(1))}))
    (tmp_path / "c.tar").write_bytes(b"not a tar at all" * 99)
    with pytest.raises(FileError, match=r"c\.tar: cannot be read as \.tar "):
        ImageTars(tmp_path / "c.tar")
    import gzip

    (tmp_path / "d.tar").write_bytes(gzip.compress(good.read_bytes()))
    with pytest.raises(FileError, match="must be unpacked"):
        ImageTars(tmp_path / "d.tar")
    with pytest.raises(FileError, match=r"e\.tar: cannot be read as \.tar .*No such file"):
        ImageTars(tmp_path / "e.tar")
    with pytest.raises(FileError, match="no pictures"):
        ImageTars(tar(tmp_path / "f.tar", {"a.txt": b"one"}))
    data = ImageData(ImageTars(good), size=8, rows=1)
    good.write_bytes(good.read_bytes()[:520])
    with pytest.raises(FileError, match=r"a\.tar: .*cut off"):
        data.batch(0)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=40), cut=st.integers(0, 70), kind=st.sampled_from(["PNG", "JPEG", "GIF", "WEBP"]))
def test_fuzzed_pictures_decode_or_are_named(content: bytes, cut: int, kind: str) -> None:
    good = encoded(picture(3), kind)
    for broken in (content, good[:cut], good[:cut] + content + good[cut + len(content) :]):
        try:
            assert decode(broken, "here.png", (8, 8)).shape == (8, 8, 3)
        except MueError as problem:
            named = str(problem).startswith("here.png")
            assert named


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ('{"file": "../a.png", "caption": "x"}', "points out of the folder"),
        ('{"file": "/etc/passwd", "caption": "x"}', "points out of the folder"),
        ('{"file": "b.png", "caption": "x"}', r"captions\.jsonl:1: no picture 'b\.png'"),
        ('{"file": "a.png"}', "write it as"),
        ('{"file": 3, "caption": "x"}', "write it as"),
        ('{"file": "a.png", "caption": 3}', r"captions\.jsonl:1: the caption is '3', not a text"),
        ("nonsense", "not a JSON object"),
    ],
)
def test_broken_caption_tables_are_named(tmp_path: Path, row: str, says: str) -> None:
    (tmp_path / "in").mkdir()
    for path in (tmp_path / "a.png", tmp_path / "in" / "a.png"):
        path.write_bytes(encoded(picture(1)))
    (tmp_path / "in" / "captions.jsonl").write_text(row)
    with pytest.raises(FileError, match=says):
        ImageFolder(tmp_path / "in")


def test_broken_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such folder"):
        ImageFolder(tmp_path / "nowhere")
    with pytest.raises(FileError, match="no pictures"):
        ImageFolder(tmp_path)
    (tmp_path / "a.png").write_bytes(encoded(picture(1)))
    with pytest.raises(FileError, match=r"a\.png: .*a\.txt"):
        ImageFolder(tmp_path)
    (tmp_path / "a.txt").write_bytes(b"\xff")
    with pytest.raises(FileError, match=r"a\.txt: not UTF-8"):
        ImageFolder(tmp_path)


def test_broken_arrays_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('["one"]')
    for images, says in (
        (np.zeros((1, 8, 8, 3), np.float32), "images are float32"),
        (np.zeros((1, 8, 8), np.uint8), r"images are uint8 \[1, 8, 8\]"),
        (np.zeros((2, 8, 8, 3), np.uint8), "1 captions, but .* holds 2 images"),
        (np.array([{}], object), "not an .npz of images"),  # would need pickle
    ):
        np.savez(tmp_path / "a.npz", images=images)
        with pytest.raises(FileError, match=says):
            ImageArrays(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", pictures=np.zeros(3))
    with pytest.raises(FileError, match=r"'images'.* pictures\.npy"):
        ImageArrays(tmp_path / "a.npz")
    (tmp_path / "a.npz").write_bytes(b"PK broken")
    with pytest.raises(FileError, match=r"\.npz of images"):
        ImageArrays(tmp_path / "a.npz")


def test_arrays_that_would_unpack_to_too_much_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("complete_mue.lab.data.images.LARGEST_ARRAYS", 10_000)
    np.savez_compressed(tmp_path / "a.npz", images=np.zeros((100, 8, 8, 3), np.uint8))
    with pytest.raises(FileError, match="10000 bytes"):
        ImageArrays(tmp_path / "a.npz")


@pytest.mark.tools
def test_dataset_columns_are_named(tmp_path: Path) -> None:
    dataset(tmp_path)
    with pytest.raises(FileError, match=r"'caption'.*image, text.*caption_"):
        HubImages(tmp_path / "saved", caption_key="caption")
