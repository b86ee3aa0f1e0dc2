"""What a source of data holds, in one short text: the same wherever the data lies, another once it is replaced.

    scenes                          a built-in source, by its version
    stdlib-6a0c53f0d1b2e4f7         Python's own sources, by their content
    text-1f2e3d4c-0123456789abcdef  prepared text, by the checksums in its manifest: tokenizer, training shards
    features-…, images-…            cached features by their checksums; captioned images by names, sizes and captions

Nothing but manifests is read where there is one, and torch is not needed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from complete_mue.lab.data.manifest import Manifest
from complete_mue.lab.data.shard_folder import holds_features
from complete_mue.lab.data.standard_library import library_checksum

# What a built-in source is known by: a change to what it draws for a seed gives it another text, such as "scenes-2".
DRAWN = {"scenes": "scenes", "shapes": "shapes", "sprites": "sprites"}


def text_identity(source: str) -> str:
    """Of ``stdlib`` or a folder that ``prepare`` wrote."""
    if source == "stdlib":
        return f"stdlib-{library_checksum()[:16]}"
    manifest = Manifest.read(source)
    return f"{tokenizer_identity(manifest)}-{_digest([shard.sha256 for shard in manifest.splits['train'].shards])}"


def tokenizer_identity(manifest: Manifest) -> str:
    """The first part of prepared text's identity: what decided the ids."""
    return f"text-{manifest.tokenizer.sha256[:8]}"


def picture_identity(source: str) -> str:
    """Of a built-in source, a folder that ``cache_features`` wrote, or captioned images."""
    if source in DRAWN:
        return DRAWN[source]
    if holds_features(Path(source)):
        from complete_mue.lab.data.features import FeatureManifest

        return f"features-{_digest([shard.sha256 for shard in FeatureManifest.read(source).shards])}"
    from complete_mue.lab.data.picture_sources import open_collection

    return f"images-{open_collection(source).identity()[:16]}"


def identity_now(source: str, known: str) -> str:
    """What ``source`` holds now, if it is still of the kind that ``known`` is."""
    return text_identity(source) if known.startswith(("text-", "stdlib-")) else picture_identity(source)


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
