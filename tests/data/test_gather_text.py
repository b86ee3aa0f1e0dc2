"""Text out of packages: what is kept, what is left out and why; from archives that this test packs itself."""

from __future__ import annotations

import argparse
import io
import json
import lzma
import runpy
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gather_text.py"


@pytest.fixture(scope="module")
def script() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(SCRIPT), run_name="gather_text"))


def prose(subject: str) -> str:
    """Paragraphs that no other subject shares."""
    things = ("harbour", "orchard", "telescope", "manuscript", "laboratory")
    return "\n\n".join(
        f"The {subject} {thing} of {subject} is described in the {subject} handbook for {subject} {thing} owners, "
        f"and it can be repaired by a {subject} mechanic if the {thing} of {subject} is not in use."
        for thing in things
    )


def sdist(licence: str, **files: str | bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in {"PKG-INFO": f"Name: p\nVersion: 1\n{licence}\n\n", **files}.items():
            data = content if isinstance(content, bytes) else content.encode()
            entry = tarfile.TarInfo(f"p-1/{name}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        link = tarfile.TarInfo("p-1/docs/link.rst")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return packed.getvalue()


def taken(script: SimpleNamespace, archive: bytes, *, room: int = 0, seen: Any = None, name: str = "p-1.tar.gz") -> Any:
    return script.take(script.Group("p", "1", name), archive, seen or script.Seen(), room)


@pytest.mark.parametrize(
    ("licence", "kept"),
    [
        ("License-Expression: MIT", True),
        ("License-Expression: Apache-2.0 AND BSD-3-Clause", True),
        ("Classifier: License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)", True),
        ("License: Public Domain", True),
        ("License-Expression: GPL-3.0-only", False),
        ("License-Expression: MIT OR GPL-2.0", False),
        ("Classifier: License :: OSI Approved :: GNU Lesser General Public License v3 (LGPLv3)\nLicense: MIT", False),
        ("License: SMITH", False),
        ("Summary: nothing said", False),
    ],
)
def test_permissive_licences_alone(script: SimpleNamespace, licence: str, kept: bool) -> None:
    group = taken(script, sdist(licence, **{"README.md": prose("river")}))
    assert bool(group.documents) is kept
    assert group.skipped.startswith("licence") is not kept


def test_text_is_kept_and_the_rest_left(script: SimpleNamespace) -> None:
    files = {
        "docs/a.rst": prose("river").replace("\n\n", "\n\n\n \n\n"),
        "docs/numbers.txt": "1 2 3 4\n" * 500,
        "docs/latin.rst": b"\xff\xfe" * 500,
        "p/_vendor/other.md": prose("vendored"),
        "LICENSE.txt": prose("licence"),
        "p/core.py": f'"""{prose("docstring")}"""\nx = """{prose("value")}"""\n',
        "p/api.json": json.dumps({"deep": [{"description": "<b>" + prose("api") + "</b>", "title": prose("title")}]}),
    }
    group = taken(script, sdist("License: MIT", **files))
    text = "".join(group.documents)
    assert [word in text for word in ("river", "docstring", "api ")] == [True] * 3
    assert [word in text for word in ("vendored", "licence", "value", "title", "<b>", "1 2 3", "root:")] == [False] * 7
    assert script.SEPARATOR not in text
    assert (group.prose_bytes, group.code_bytes) == (len(text), 0)


def test_whole_sources_while_there_is_room(script: SimpleNamespace) -> None:
    archive = sdist("License: MIT", **{"p/core.py": f'"""{prose("code")}"""\nx = 1\n'})
    assert [taken(script, archive, room=room).code_bytes > 0 for room in (0, 100_000)] == [False, True]


def test_what_is_known_is_not_taken_again(script: SimpleNamespace) -> None:
    seen = script.Seen()
    first = taken(script, sdist("License: MIT", **{"a.md": prose("river")}), seen=seen)
    near = prose("river").replace("repaired", "restored").replace(",", ";") + "\n\n" + prose("meadow")
    again = taken(script, sdist("License: MIT", **{"b.md": near}), seen=seen)
    assert first.documents == [prose("river")]
    assert again.documents == [prose("meadow")]


def test_a_wheel_is_read_too(script: SimpleNamespace) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("p-1.dist-info/METADATA", f"Name: p\nLicense-Expression: ISC\n\n{prose('readme')}")
    assert taken(script, packed.getvalue(), name="p-1-py3-none-any.whl").documents == [prose("readme")]


def test_the_newest_release_and_its_sources_first(script: SimpleNamespace) -> None:
    names = ["p-2.0-py3-none-any.whl", "p-1.10.tar.gz", "p-3.0rc1.tar.gz", "p-2.0.tar.gz", "p-1.9.tar.gz", "p.exe"]
    ranked = sorted(name for name in names if script._rank(name) is None)
    assert ranked == ["p.exe"]
    assert max((name for name in names if script._rank(name)), key=script._rank) == "p-2.0.tar.gz"


class _Shelf:
    """A registry of three packages."""

    def __init__(self, script: SimpleNamespace) -> None:
        self.script, self.asked = script, list[str]()

    def names(self) -> list[str]:
        return ["p-three", "p-two", "other"]

    def newest(self, package: str) -> tuple[Any, bytes]:
        self.asked.append(package)
        licence = "License: GPL" if package == "p-three" else "License: MIT"
        return self.script.Group(package, "1", "p-1.tar.gz"), sdist(licence, **{"README.md": prose(package[-4:])})


def test_a_second_start_goes_on_and_the_parts_hold_all(script: SimpleNamespace, tmp_path: Path) -> None:
    listed, out, cache = tmp_path / "packages.txt", tmp_path / "text", tmp_path / "cache"
    out.mkdir(), cache.mkdir()
    shelf, given = _Shelf(script), argparse.Namespace(cache=cache, packages=listed, code_share=0.3, bytes_per_token=4.0)
    given.tokens_goal, given.seconds = 1e6, float("inf")
    for lines in ("first # the best", "first\np-*\n../evil"):
        listed.write_text(lines)
        script.gather(given, shelf)
    assert shelf.asked == ["first", "p-three", "p-two"]
    script.pack(out, cache, 4.0)
    manifest = json.loads((out / "manifest.json").read_text())
    assert [group["package"] for group in manifest["groups"]] == ["first", "p-two"]
    assert [group["package"] for group in manifest["left_out"]] == ["p-three"]
    parts = [lzma.decompress((out / part["file"]).read_bytes()).decode() for part in manifest["parts"]]
    assert sorted(parts[0].split(script.SEPARATOR)) == sorted([prose("irst"), prose("-two")])
    assert manifest["bytes"] == sum(group["prose_bytes"] for group in manifest["groups"])
