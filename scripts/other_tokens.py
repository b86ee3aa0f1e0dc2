"""Does another tokenizer move the optimum? A small dense model reads Python's standard library as bytes, and in the
words of tokenizers that are trained on it: as many tokens and steps, nine learning rates half an octave apart.

    python scripts/other_tokens.py                                             # about 15 minutes on two cores
    python scripts/other_tokens.py --words 512 --set budget.steps=20 --out /tmp/try
    mue report runs/other-tokens/sweep --pack docs/results/medium

Needs the library tokenizers. A second start goes on where this one was stopped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from complete_mue.lab.data import prepare
from complete_mue.lab.data.standard_library import library_texts
from complete_mue.storage import make_folder, write_text

WORDS = (1024, 4096, 8192)
BASE = ("budget.steps=300", "budget.batch_tokens=2048", "task.sequence=64", "reference.hyper.lr=0.004")
LEARNING_RATES = [0.004 * 2 ** (k / 2) for k in range(-3, 6)]


def main() -> int:
    """Make the data and the sweep's file, then run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, action="append", help="Vocabularies. Default: 1024, 4096 and 8192.")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="Change the config.")
    parser.add_argument("--out", type=Path, default=Path("runs/other-tokens"))
    given = parser.parse_args()
    make_folder(given.out)
    texts = [text.decode("utf-8", errors="replace") for text in library_texts()]
    file = given.out / "text.jsonl"
    write_text(file, "".join(f"{json.dumps({'text': text})}\n" for text in texts))
    prepare(file, given.out / "bytes", progress=False)
    targets = []
    for words in given.words or WORDS:
        tokenizer = trained(texts, words, given.out / f"bpe-{words}.json")
        prepare(file, given.out / f"words-{words}", tokenizer=tokenizer, progress=False)
        targets.append(f'"{words:,} words" = ["task.source={given.out}/words-{words}"]')
    overrides = [*BASE, f"task.source={given.out}/bytes", *given.set]
    sweep = given.out / "other_tokens.toml"
    write_text(sweep, "\n".join([
        'name = "other_tokens"', 'title = "The same text in other tokens"', 'axis = "words"', 'recipe = "lm_tiny"',
        f"overrides = {json.dumps(overrides)}", 'rules = ["complete_mue"]', "seeds = 2", "[scan]",
        f"lr = {LEARNING_RATES}", "[targets]", *targets, "",
    ]))  # fmt: skip
    command = [sys.executable, "-m", "complete_mue", "sweep", str(sweep), "--out", str(given.out / "sweep")]
    return subprocess.run(command, check=False).returncode


def trained(texts: list[str], words: int, file: Path) -> Path:
    """A byte-level BPE tokenizer of so many words; one that is there already is kept."""
    if not file.exists():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        tokenizer.train_from_iterator(
            texts, trainers.BpeTrainer(
                vocab_size=words, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
            )
        )  # fmt: skip
        write_text(file, tokenizer.to_str())
    return file


if __name__ == "__main__":
    sys.exit(main())
