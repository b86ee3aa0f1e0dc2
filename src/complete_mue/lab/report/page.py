"""The page's style sheet and script: no fonts, no other files, no network."""

from __future__ import annotations

from importlib.resources import files

STYLE, SCRIPT = (files(__package__).joinpath(name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
