"""The families as the two tables of docs/apply.md: ``python scripts/families.py`` prints them."""

from __future__ import annotations

from collections.abc import Iterator

from complete_mue.apply.families import FAMILIES
from complete_mue.apply.family import Family
from complete_mue.layout import Role


def page() -> str:
    """Supported and refused, as Markdown."""
    known = [family for family in FAMILIES.values() if not family.refused]
    refused = [family for family in FAMILIES.values() if family.refused]
    lines = [
        f"{len(known)} families are supported:",
        "",
        "| family | routing weights | multipliers in its own forward pass | other features |",
        "|---|---|---|---|",
        *(f"| {one.name} | {_weights(one)} | {_native(one)} | {'; '.join(_features(one)) or '–'} |" for one in known),
        "",
        f"{len(refused)} are refused, each with its reason:",
        "",
        "| family | why |",
        "|---|---|",
        *(f"| {one.name} | {one.refused} |" for one in refused),
    ]
    return "\n".join(lines) + "\n"


def _weights(family: Family) -> str:
    if not any(pattern.role is Role.EXPERT_DOWN for pattern in family.patterns):
        return "dense"
    if isinstance(family.normalized, str):
        return f"`{family.normalized}=True`"
    return "sum to one" if family.normalized else "`mue.normalize_routing`"


def _native(family: Family) -> str:
    fields: dict[str, list[str]] = {}
    roles = {pattern.role for pattern in family.patterns}
    for key, given in family.native.items():
        name = key.split(".")[-2] if "." in key else key
        if "." in key or Role(key) in roles:
            fields.setdefault(str(given), []).append(name)
    return ", ".join(f"`{field}` ({', '.join(dict.fromkeys(keys))})" for field, keys in fields.items()) or "–"


def _features(family: Family) -> Iterator[str]:
    patterns = family.patterns
    if isinstance(family.active, int) and family.active:
        yield f"its router always takes {family.active}"
    if any(pattern.role is Role.ROUTER and pattern.axes[0] == "one" for pattern in patterns) and family.native:
        yield "a gate on the shared expert that starts at one half"
    if any(pattern.start == "1+w" for pattern in patterns):
        yield "norms multiply by 1 + w"
    if any(pattern.multiplied_as == "residual" for pattern in patterns):
        yield "norms after the branches"
    if any(pattern.fan_in == "kernel" for pattern in patterns):
        yield "linear attention or short convolutions"
    if any(pattern.fan_in == "rank" for pattern in patterns):
        yield "low-rank attention projections"
    if any("indexer" in pattern.name for pattern in patterns):
        yield "an indexer that the loss does not train"
    for reason in family.refuses.values():
        yield f"refused: {reason}"


if __name__ == "__main__":
    print(page(), end="")
