"""Every Mixture of Experts of the installed transformers is served or refused with its own reason; docs list them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

transformers = pytest.importorskip("transformers", reason="stock families need transformers")

import complete_mue as mue  # noqa: E402
from complete_mue.apply import FAMILIES  # noqa: E402
from complete_mue.errors import BindError  # noqa: E402

DOCS = Path(__file__).parents[2] / "docs" / "apply.md"
ROUTED = re.compile(r"class \w*(Experts|SparseMoe|MoE|Moe|MOE|TopKRouter|TopkRouter|SparseMLP)\w*\(nn\.")
PARTS = ("vision", "audio", "encoder", "assistant", "code_predictor", "sam", "code2wav")


def moe_types() -> list[str]:
    """Every model type whose own modeling file defines experts; parts that see or hear are not language models."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    models = Path(transformers.__file__).parent / "models"
    found = []
    for folder in sorted(models.iterdir()):
        code = "".join(file.read_text(encoding="utf-8") for file in folder.glob("modeling_*.py"))
        configs = "".join(file.read_text(encoding="utf-8") for file in folder.glob("configuration_*.py"))
        if ROUTED.search(code):
            found += [kind for kind, name in CONFIG_MAPPING_NAMES.items() if f"class {name}(" in configs]
    return [kind for kind in found if not any(part in kind.split("_") or part in kind for part in PARTS)]


def test_every_routed_family_of_transformers_is_served_or_refused_with_its_reason() -> None:
    kinds = moe_types()
    assert len(kinds) > 60
    assert {"mixtral", "qwen3_next", "jamba", "nllb-moe", "llama4"} <= set(kinds)
    unknown = sorted(set(kinds) - set(FAMILIES))
    assert not unknown, unknown
    for kind in kinds:
        if FAMILIES[kind].refused:
            config = type("Config", (), {"model_type": kind})()
            with pytest.raises(BindError, match="is not supported: ") as problem:
                mue.describe(config)
            assert FAMILIES[kind].refused in str(problem.value)


def test_the_docs_list_the_families() -> None:
    text = DOCS.read_text(encoding="utf-8")
    inner = text.partition("<!-- generated: families -->\n")[2].partition("<!-- end -->")[0]
    page = runpy.run_path(str(DOCS.parents[1] / "scripts" / "families.py"))["page"]
    assert inner == page(), "run `python scripts/families.py` and put its output there"
