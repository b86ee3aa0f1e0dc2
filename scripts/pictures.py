"""Pictures and clips by a dense and a sparse diffusion model of equal active width, from one transferred plan. With
several ``--layout``, one dense model and as many sparse ones.

    python scripts/pictures.py                                         # drawn scenes, then moving sprites, on one GPU
    python scripts/pictures.py --images images.npz --only images       # captioned pictures of your own, 64 pixels wide
    python scripts/pictures.py --seconds 540                           # save and stop by then
    python scripts/pictures.py --list                                  # the commands alone

The models of a show train, then draw the same captions from the same noise, then their losses are compared: step by
step, and at the end on what neither has seen: new drawings, or one of twenty pictures of an .npz, which is kept apart.
Everything resumes: a second start goes on where this one was stopped. RUNS/results holds a picture for each model, one
of the data with the same captions, what `mue speedup` says of each sparse model, and pictures.json with all losses.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from turns import Step, of_equal_width, one_by_one, speedups

from complete_mue.errors import MueError
from complete_mue.storage import whole, write_json

LAYOUT, COUNT, SEED = "64e8a", 25, 1  # of the sparse model; of what is drawn
APART = 20  # of so many pictures of your own, one
# 256 tokens a picture, 512 a clip, beside those of its caption. A collection is small, so it is seen many times.
SHOWS = {
    "scenes": ("task.source=scenes", "task.size=32", "task.patch=2"),
    "sprites": ("task.source=sprites", "task.size=32", "task.patch=4", "task.frames=8", "task.text_length=80"),
    "images": ("task.size=64", "task.patch=4", "task.epochs=repeat", "task.text_length=128"),
}


def models(given: argparse.Namespace) -> dict[str, str]:
    """By name, their layouts."""
    return of_equal_width(given.layout or [LAYOUT], given.width // 4)


def steps(given: argparse.Namespace, show: str) -> Iterator[Step]:
    """The commands of one show, in order."""
    seen, unseen = parts(given) if show == "images" else (None, None)
    source = [f"task.source={seen}"] if seen else []
    shape = [f"shape.width={given.width}", f"shape.depth={given.depth}", "shape.head_dim=32"]
    budget = [f"budget.batch_tokens={given.batch_tokens}", f"budget.steps={given.steps}"]
    # Without the norms, attention logits of the dense model on OpenMoji grow to 57,000, and step 3,105 is not finite.
    often = ["qk_norm=true", "log_every=5", f"checkpoint_every={max(1, given.steps // 4)}"]
    for name, layout in models(given).items():
        changes = [*SHOWS[show], *source, f"shape.feed_forward={layout}", *shape, *budget, *often, *given.set]
        tuned = ["--reference", str(given.reference)]
        run = str(given.runs / f"{show}-{name}")
        yield Step(["train", f"dit_proxy:{name}", *changes, *tuned, "--resume", "--out", run])
    for name in models(given):
        picture = given.runs / "results" / f"{show}-{name}.{_ending(show)}"
        drawn = ["--guidance", "3", "--steps", "50", "--count", f"{COUNT}", "--seed", f"{SEED}", "--out", str(picture)]
        yield Step(["sample", str(given.runs / f"{show}-{name}"), *drawn], picture)
    dense, *sparse = runs = [given.runs / f"{show}-{name}" for name in models(given)]
    if unseen or show != "images":
        other = ["--source", str(unseen)] if unseen else []
        for run in runs:
            yield Step(["eval", str(run), "--held-out", *other], run / "eval" / "held_out.json")
    yield from speedups(dense, sparse, given.runs / "results")


def losses(given: argparse.Namespace) -> dict[str, Any]:
    """What each finished run ended with."""
    found = {}
    for show in given.shows:
        for name, layout in models(given).items():
            result = given.runs / f"{show}-{name}" / "result.json"
            if result.is_file():
                ended = json.loads(result.read_text(encoding="utf-8"))
                found[f"{show}-{name}"] = {"layout": layout, **{key: ended[key] for key in ("loss", "steps")}}
            unseen = given.runs / f"{show}-{name}" / "eval" / "held_out.json"
            if unseen.is_file():
                measured = json.loads(unseen.read_text(encoding="utf-8"))
                found[f"{show}-{name}"] |= {f"held_out_{key}": measured[key] for key in ("loss", "error", "pictures")}
    return found


def parts(given: argparse.Namespace) -> tuple[Path, Path | None]:
    """Where the pictures to learn from are, and those that are kept apart: of an .npz."""
    if given.images.suffix == ".npz":
        return given.runs / "seen.npz", given.runs / "unseen.npz"
    return given.images, None


def keep_apart(given: argparse.Namespace) -> None:
    """Write both parts of an .npz. Runs know their data by what it holds, so they go on with the same parts only."""
    from complete_mue.lab.data import ImageArrays

    seen, unseen = parts(given)
    if unseen is None:
        return
    items = ImageArrays(given.images).items
    for path, chosen in ((seen, [item for n, item in enumerate(items) if n % APART]), (unseen, items[::APART])):
        write_json(path.with_suffix(".json"), [item.caption for item in chosen])
        with whole(path) as file:
            np.savez(file, images=np.stack([item.read() for item in chosen]))


def draw_data(given: argparse.Namespace) -> None:
    """What the data shows for the captions that the models draw."""
    from complete_mue.lab.train.config import PictureTask, read_config
    from complete_mue.lab.train.sample import grid, of_the_source, write_pictures

    for show in given.shows:
        task = read_config(given.runs / f"{show}-dense" / "config.json").task
        assert isinstance(task, PictureTask)
        pictures = of_the_source(task, COUNT, SEED).images
        frames = grid(pictures if pictures.dim() == 5 else pictures[:, :, None])
        write_pictures(frames, given.runs / "results" / f"{show}-data.{_ending(show)}")


def _ending(show: str) -> str:
    return "gif" if show == "sprites" else "png"


def main() -> int:
    """Run what is not done yet, or list the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="captioned pictures, as of `mue train … task.source=`")
    parser.add_argument("--only", default="", help=f"some of {', '.join(SHOWS)}, divided by commas")
    parser.add_argument("--reference", type=Path, default=Path("docs/results/dit-reference.toml"))
    parser.add_argument(
        "--layout", action="append", help=f"of an MoE (default: {LAYOUT}); experts are a quarter of the width wide"
    )
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--batch-tokens", type=int, default=32768)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change all runs' config")
    parser.add_argument("--runs", type=Path, default=Path("runs/pictures"))
    parser.add_argument("--seconds", type=float, default=math.inf, help="save and stop after so many")
    parser.add_argument("--list", action="store_true", help="print the commands and stop")
    given = parser.parse_args()
    asked = [name for name in given.only.split(",") if name]
    given.shows = asked or [show for show in SHOWS if show != "images" or given.images]
    if unknown := [show for show in given.shows if show not in SHOWS]:
        parser.error(f"--only {unknown[0]!r}: give some of {', '.join(SHOWS)}")
    if "images" in given.shows and given.images is None:
        parser.error("--only images: give --images")
    if given.images is not None and not given.images.exists():
        parser.error(f"--images {given.images}: no such file or folder")
    try:
        todo = [step for show in given.shows for step in steps(given, show)]
    except MueError as error:
        parser.error(str(error))
    if given.list:
        print("\n".join(f"mue {shlex.join(step.command)}" for step in todo))
        return 0
    (given.runs / "results").mkdir(parents=True, exist_ok=True)
    if "images" in given.shows:
        try:
            keep_apart(given)
        except MueError as error:
            parser.error(str(error))
    if (code := one_by_one(todo, given.seconds)) == 0:
        draw_data(given)
    write_json(given.runs / "results" / "pictures.json", losses(given))
    return code


if __name__ == "__main__":
    sys.exit(main())
