"""What a folder of prepared data holds, for ``mue data show``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from complete_mue.lab.data.digest import picture_identity, text_identity
from complete_mue.lab.data.manifest import Manifest
from complete_mue.lab.data.shard_folder import FEATURES


@dataclass(frozen=True)
class Summary:
    """Facts by name, as text or as plain data."""

    facts: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return self.facts

    def __str__(self) -> str:
        width = max(map(len, self.facts))
        return "\n".join(f"{name:<{width}}  {_said(value)}" for name, value in self.facts.items())


def describe(folder: str | Path) -> Summary:
    """The summary of a folder that ``prepare`` or ``cache_features`` wrote; raises FileError for any other."""
    folder = Path(folder)
    if FEATURES.is_at(folder):
        from complete_mue.lab.data.features import FeatureManifest

        facts = {"identity": picture_identity(str(folder)), **FeatureManifest.read(folder).facts()}
    else:
        facts = {"identity": text_identity(str(folder)), **_text(Manifest.read(folder))}
    return Summary({"folder": str(folder), **facts})


def _text(manifest: Manifest) -> dict[str, Any]:
    tokenizer = manifest.tokenizer
    facts: dict[str, Any] = {
        "tokenizer": tokenizer.name,
        "vocabulary": tokenizer.vocab,
        "end_of_text": tokenizer.end_of_text,
        "checksum": tokenizer.sha256,
        "type": manifest.dtype,
    }
    for name, split in manifest.splits.items():
        facts[name] = {"documents": split.documents, "tokens": split.tokens, "shards": len(split.shards)}
    facts["sources"] = [source.get("file", "?") for source in manifest.sources]
    return facts


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{_said(number)} {name}" for name, number in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value[:5])) + (f" and {len(value) - 5} more" if len(value) > 5 else "")
    return f"{value:,}" if isinstance(value, int) else str(value)
