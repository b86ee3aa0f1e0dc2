"""For mkdocs: links that work in the repository work in the site, too, plain mathematics is typeset, and the notebook
is a page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_EXAMPLE = re.compile(r"\]\(\.\./((?:\.\./)*examples/)")
_FOLDER = re.compile(r"\]\(((?:\.\./)*results)/\w+/?\)")
_NOT_TEXT = re.compile(r"(<(code|pre|script|style|svg)\b.*?</\2>|<[^>]*>)", re.DOTALL)
_SUBSCRIPT = re.compile(r"(?<!\w)([^\W\d_])_(\w+)")  # one letter, then the index: no name such as dense_up
_SUPERSCRIPT = re.compile(r"\^(?:\(([^)]*)\)|([-−]?[\w./]*\w))")


def on_files(files: Files, config: Any) -> Files:
    """Add examples/*.py, *.toml and *.ipynb, which lie beside the docs, and each notebook as a page."""
    root = Path(config.config_file_path).parent
    for path in sorted((root / "examples").rglob("*")):
        if path.suffix in (".py", ".toml", ".ipynb"):
            files.append(File.generated(config, path.relative_to(root).as_posix(), abs_src_path=str(path)))
        if path.suffix == ".ipynb":
            text = notebook_page(json.loads(path.read_text(encoding="utf-8"))["cells"])
            files.append(File.generated(config, f"{path.stem}.md", content=text.replace("](../docs/", "](")))
    return files


def notebook_page(cells: list[dict[str, Any]]) -> str:
    """A notebook as Markdown: its words, its code and what that printed and drew."""
    parts = []
    for cell in cells:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                parts.append(
                    f'<img alt="what the cell above draws" src="data:image/png;base64,{data["image/png"].strip()}">'
                )
            else:
                parts.append(f"```text\n{''.join(data['text/plain']).rstrip()}\n```")
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """In the site the examples are one level nearer, and a folder has no page: its results page has."""
    return _FOLDER.sub(r"](\1/index.md)", _EXAMPLE.sub(r"](\1", markdown))


def typeset(text: str) -> str:
    """Plain mathematics as HTML."""
    text = _SUBSCRIPT.sub(r"\1<sub>\2</sub>", text)
    text = _SUPERSCRIPT.sub(lambda found: f"<sup>{(found[1] or found[2]).replace('-', '−')}</sup>", text)
    return text.replace("⋆", "<sup>⋆</sup>")


def on_page_content(html: str, **_: Any) -> str:
    """Mathematics outside code is typeset. Quotes are equations: the style sheet sets them so."""
    pieces = _NOT_TEXT.split(html)  # text, what is not, its tag's name, text, …
    return "".join(typeset(piece) if n % 3 == 0 else piece if n % 3 == 1 else "" for n, piece in enumerate(pieces))
