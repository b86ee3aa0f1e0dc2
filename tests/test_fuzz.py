"""Thousands of bad inputs: only our own errors come out."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path

import pytest

import complete_mue as mue

ALPHABET = "0123456789eags+@denst -._٣\x00\n[]=\"'#,{}ñ"


def rounds(few: int, many: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("rounds", [few, pytest.param(many, marks=pytest.mark.slow)])


def mutated(text: str, dice: random.Random) -> str:
    for _ in range(dice.randint(1, 4)):
        at, length = dice.randrange(len(text) + 1), dice.choice([0, 1, 1, 2, 8, 40])
        text = text[:at] + "".join(dice.choices(ALPHABET, k=dice.choice([0, 1, 1, 3, 20]))) + text[at + length :]
    return text


@rounds(2_000, 4_000)
def test_layouts(rounds: int) -> None:
    dice = random.Random(1)
    seeds = ["dense", "64e8a", "128e8a4g1s", "dense@512+32e2a@512+16e2a@256"]
    read = 0
    for number in range(rounds):
        text = (
            mutated(dice.choice(seeds), dice) if number % 4 else "".join(dice.choices(ALPHABET, k=dice.randint(0, 30)))
        )
        width = dice.choice([None, 16, 0, -3, 10**30, 1.5, "7"])
        with contextlib.suppress(mue.MueError):
            block = mue.FeedForward.parse(text, width)  # type: ignore[arg-type]
            assert mue.FeedForward.parse(str(block), block.expert_width) == block
            read += 1
    assert read > rounds / 200  # some mutants are still layouts


@rounds(1_000, 4_000)
def test_files(root: Path, tmp_path: Path, rounds: int) -> None:
    dice = random.Random(2)
    texts = [path.read_text(encoding="utf-8") for path in sorted((root / "examples").glob("*.toml"))]
    numbers = ["-1", "0", "1e999", "nan", "inf", "true", '"x"', "[]", "{}", "9" * 40, "1979-05-27", "[1, [2]]"]
    path, read = tmp_path / "mutant.toml", 0
    for number in range(rounds):
        text = dice.choice(texts)
        if number % 2:
            lines = text.splitlines()
            at = dice.randrange(len(lines))
            if "=" in lines[at]:
                lines[at] = f"{lines[at].split('=')[0]}= {dice.choice(numbers)}"
            text = "\n".join(lines)
        else:
            text = mutated(text, dice)
        path.write_bytes(text.encode("utf-8", "replace") + bytes([dice.randrange(256)] if number % 50 == 0 else []))
        with contextlib.suppress(mue.MueError):
            reference = mue.read_reference(path)
            shape, budget = mue.read_target(path)
            mue.transfer(reference, shape, budget)
            read += 1
    assert read > rounds / 200


@rounds(100, 500)
def test_plans(lm_plan: mue.Plan, rounds: int) -> None:
    dice = random.Random(3)
    text = lm_plan.to_json()
    junk = [None, -1, 0, "x", [], {}, True, 1e300, float("inf"), "dense", [[]]]
    for number in range(rounds):
        if number % 3 == 0:
            broken = mutated(text, dice)
        else:
            data = json.loads(text)
            at = data
            while True:
                key = dice.choice(list(at)) if isinstance(at, dict) else dice.randrange(len(at))
                if isinstance(at[key], dict | list) and at[key] and dice.random() < 0.8:
                    at = at[key]
                else:
                    at[key] = dice.choice(junk)
                    break
            broken = json.dumps(data)
        with contextlib.suppress(mue.MueError):
            str(mue.Plan.from_json(broken))
