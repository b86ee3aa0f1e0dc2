"""Small data to prepare, and a tiny tokenizer."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

WORDS = ("the", "cat", "dog", "sat", "ran", "on", "under", "mat", "house", "naïve", "straße", "猫", "λ", "=", "+", "1")


def documents(number: int, seed: int = 0, words: int = 60) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, words))) + f" #{n}" for n in range(number)]


@pytest.fixture
def texts() -> list[str]:
    return documents(200)


@pytest.fixture
def two_sources(tmp_path: Path) -> Callable[[int], list[Path]]:
    """Writes so many documents into a text file and a file of JSON lines."""

    def write(number: int) -> list[Path]:
        made, paths = documents(number, seed=3), [tmp_path / "a.txt", tmp_path / "b.jsonl"]
        paths[0].write_text("\n\n\n".join(made[: number // 3]))
        paths[1].write_text("".join(json.dumps({"text": text}) + "\n" for text in made[number // 3 :]))
        return paths

    return write


@pytest.fixture(scope="session")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE tokenizer.json of 300 tokens, trained here."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|padding|>", "<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents(200), trainer)
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    tokenizer.save(str(path))
    return path
