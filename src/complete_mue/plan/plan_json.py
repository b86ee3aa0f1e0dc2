"""A plan as plain data and JSON, without loss."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from complete_mue.errors import FileError, MueError, one_of
from complete_mue.layout.notation import FeedForward, Parameters, RoutedGroup
from complete_mue.layout.numbers import count
from complete_mue.layout.reference import Hyper, reference_from
from complete_mue.layout.shape import Budget, ModelShape
from complete_mue.layout.tensors import Role
from complete_mue.plan.row import ROW_COLUMNS, Factors, Multiplier, Row
from complete_mue.rules.catalog import Rules
from complete_mue.rules.ratios import Ratios
from complete_mue.rules.sde import sde_report
from complete_mue.storage import json_object

if TYPE_CHECKING:
    from complete_mue.plan.plan import Plan

FORMAT = 1
_MOST_WEIGHTS = 10**99  # of the largest shape there can be
_RATIOS = ("width", "depth", "batch", "tokens", "active_width", "sparsity")


def to_dict(plan: Plan) -> dict[str, Any]:
    """What `mue plan --format json` prints."""
    r, h, main = plan.ratios, plan.hyper, plan.shape.main
    return {
        "format": FORMAT,
        "ratios": {name: getattr(r, name) for name in _RATIOS},
        "global": {"lr": h.lr, "weight_decay": h.weight_decay, "eps": h.eps, "betas": list(h.betas)},
        "rows": [_row_to_dict(row) for row in plan.rows],
        "folded": [_row_to_dict(row) for row in plan.fold().rows],
        "sde": {
            "exact": plan.sde.exact,
            "grade": plan.sde.grade,
            **{name.rstrip("_"): ratio for name, ratio in asdict(plan.sde).items()},
            "verdict": str(plan.sde),
        },
        "trust": asdict(plan.trust),
        "parameters": asdict(plan.shape.parameters),
        "feed_forward": {
            "notation": str(main),
            "active_width": main.active_width,
            "route_scale": plan.block_route_scale,
            "density": main.density,
        },
        "attention_scale": plan.attention_scale,
        "absent": [_row_to_dict(row) for row in plan.absent],
        "reference": {
            **asdict(plan.reference),
            "tuned": {role.value: asdict(tuned) for role, tuned in plan.reference.tuned.items()},
        },
        "target": {"shape": asdict(plan.shape), "budget": asdict(plan.budget)},
        "rules": asdict(plan.rules),
        "betas": plan.betas,
    }


def to_json(plan: Plan, indent: int | None = 2) -> str:
    """JSON text: Python floats print their shortest exact form, so nothing is lost."""
    return json.dumps(to_dict(plan), indent=indent, ensure_ascii=False, allow_nan=False)


def read_json(text: str) -> dict[str, Any]:
    """The fields of a plan from JSON text."""
    return read_dict(json_object(text, "JSON text", "plan", "write one with `mue plan --format json`"))


def read_dict(data: Any) -> dict[str, Any]:
    """The fields of a plan from plain data; rows are taken as written, the rest follows from reference and target."""
    try:
        if data["format"] != FORMAT:
            raise FileError(
                f"plan of format {data['format']!r}: this version reads format {FORMAT}; write it again with `mue plan`"
            )
        given, target, glob = data["reference"], data["target"], data["global"]
        reference = reference_from(given, _shape_from_dict(given["shape"]))
        weights = {name: count(name, data["parameters"][name], most=_MOST_WEIGHTS) for name in ("active", "total")}
        shape = _shape_from_dict(target["shape"]).counted(Parameters(**weights))
        budget = Budget(**target["budget"])
        hyper = Hyper(init_std=reference.hyper.init_std, **glob)
        ratios = Ratios.between(reference, shape, budget)
        one_of("betas", data["betas"], ("transfer", "hold"), FileError)
        return {
            "reference": reference,
            "shape": shape,
            "budget": budget,
            "rules": Rules(**data["rules"]),
            "betas": data["betas"],
            "ratios": ratios,
            "hyper": hyper,
            "rows": tuple(_row_from_dict(row) for row in data["rows"]),
            "absent": tuple(_row_from_dict(row) for row in data["absent"]),
            "sde": sde_report(reference, shape, ratios, hyper),
        }
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError, ZeroDivisionError) as problem:
        raise FileError(
            f"not a plan: {type(problem).__name__} at {problem}; write one with `mue plan --format json`"
        ) from None
    except MueError as problem:
        raise FileError(f"not a plan: {problem}") from None


def _row_to_dict(row: Row) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in ROW_COLUMNS}
    return {**values, "role": row.role.value, "factors": asdict(row.factors), "folded": asdict(row.folded)}


def _row_from_dict(data: Mapping[str, Any]) -> Row:
    std = data["init_std"]
    return Row(
        role=Role.parse(data["role"]),
        block=str(data["block"]),
        forward=Multiplier(*(_finite(name, data[name]) for name in ("output", "route_scale", "residual"))),
        folded=Multiplier(**{name: _finite(name, value) for name, value in data["folded"].items()}),
        init_std=None if std is None else _finite("init_std", std),
        lr=_finite("lr", data["lr"]),
        weight_decay=_finite("weight_decay", data["weight_decay"]),
        eps=_finite("eps", data["eps"]),
        factors=Factors(**{name: _finite(name, value) for name, value in data["factors"].items()}),
        because=str(data["because"]),
    )


def _finite(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise FileError(f"{name} = {value!r}: give a finite number of at least 0")
    return float(value)


def _shape_from_dict(data: Mapping[str, Any]) -> ModelShape:
    def block(entry: Mapping[str, Any]) -> FeedForward:
        return FeedForward(tuple(entry["branches"]), tuple(RoutedGroup(**group) for group in entry["groups"]))

    given = data["feed_forward"]
    blocks = block(given) if isinstance(given, dict) else tuple(map(block, given))
    return ModelShape(data["width"], data["depth"], blocks, data["dense_layers"], data["head_dim"])
