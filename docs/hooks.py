"""For mkdocs: links that work in the repository work in the site, too: to examples, and to folders of results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_EXAMPLE = re.compile(r"\]\(\.\./((?:\.\./)*examples/)")
_FOLDER = re.compile(r"\]\(((?:\.\./)*results)/\w+/?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add examples/*.py and *.toml, which lie beside the docs."""
    root = Path(config.config_file_path).parent
    for path in sorted((root / "examples").rglob("*")):
        if path.suffix in (".py", ".toml"):
            files.append(File.generated(config, path.relative_to(root).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """In the site the examples are one level nearer, and a folder has no page: its results page has."""
    return _FOLDER.sub(r"](\1/index.md)", _EXAMPLE.sub(r"](\1", markdown))
