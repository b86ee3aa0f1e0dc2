"""Which cases of a test run in `make test`; the others carry the marker `slow`, and CI runs them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick(cases: Iterable[str], *kept: str) -> list[Any]:
    """All cases, those that are not kept marked slow."""
    cases = list(cases)
    assert set(kept) <= set(cases), f"{set(kept) - set(cases)} is no case"
    return [case if case in kept else pytest.param(case, marks=pytest.mark.slow) for case in cases]
