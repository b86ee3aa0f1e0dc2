"""Some steps of a tiny language model, dense and MoE, on Python's own sources; each run leaves a record."""

import json
import tempfile
from pathlib import Path

from complete_mue.lab.recipes import recipe
from complete_mue.lab.train.config import override
from complete_mue.lab.train.loop import Result, train

SMALL = ("shape.width=32", "shape.depth=2", "task.sequence=64", "budget.batch_tokens=512", "budget.steps=30")


def main() -> dict[str, Result]:
    """Train both with the dense reference's hyperparameters, transferred; `mue train` does the same."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("lm_tiny", "lm_tiny:16e4a"):
            config = override(recipe(name), *SMALL, "betas=hold", "device=cpu")
            run = Path(folder) / config.name
            results[name] = train(config, run)
            lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            print(f"{name}: {config.shape.parameters.total:,} weights, lr {config.plan.hyper.lr:.4g}, ", end="")
            print(f"loss {lines[0]['loss']:.3f} -> {results[name].loss:.3f} in {results[name].steps} steps")
            print(f"  left {', '.join(sorted(path.name for path in run.iterdir() if path.name[0] != '.'))}")
    return results


if __name__ == "__main__":
    main()
