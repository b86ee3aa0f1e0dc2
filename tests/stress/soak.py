"""Does training survive? Runs are killed, robbed of checkpoints and moved to other numbers of ranks, for minutes.

    python tests/stress/soak.py --minutes 10                    # everything, in turn, until the time is up
    python tests/stress/soak.py --minutes 1 --only run,sweep    # a quick look
    python tests/stress/soak.py --minutes 60 --seed 7 --out soak.json

Every kind of run is first trained undisturbed. Then, round after round, the same run is disturbed at random moments
(SIGKILL, SIGTERM, Ctrl-C, a lost rank or worker; between attempts files of its newest checkpoint, or of its two newest,
may be cut, overwritten or removed, and stray or copied checkpoints may turn up), gone on with, and at last left to
finish. Where no sound checkpoint is left, the run must refuse to go on, and is begun anew with --restart:

    run       one process, `mue train --resume`                              losses, weights, moments: the same bits
    ranks     two ranks, FSDP2, experts dealt out, restarted by torchrun     losses, weights, moments: the same bits
    moves     a run that goes on in one process, on two ranks, in one, …     losses: the same up to rounding
    data      `mue train --resume` on prepared text, which is replaced       refused, then the same bits with the old
    sweep     `mue sweep` in two worker processes                            its ledger: the same bits
    drivers   two `mue sweep` of one folder, `mue report` again and again    its ledger: the same bits

Watched on the way: memory and open files of all processes (in a longer undisturbed run, too), half-written files,
locks, processes that stay behind. Exit status 1 if anything was found, 130 after Ctrl-C, which ends what is running.
Linux only (/proc). Same seed, same disturbances; what they hit depends on the machine.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from watch import MARK, Watched, held, marked, send, strays, strike, tree

STEPS, BLOWS = 200, 4
RUN = (
    "lm_tiny:8e2a1s", "shape.width=32", "shape.depth=2", "task.sequence=32", "budget.batch_tokens=256", "betas=hold",
    "reference.hyper.lr=1e-3", "checkpoint_every=7", "device=cpu",
)  # fmt: skip
SWEEP = """
recipe = "lm_tiny"
overrides = ["shape.width=32", "shape.depth=2", "task.sequence=32", "budget.batch_tokens=256", "betas=hold",
             "device=cpu", "budget.steps={steps}"]
[scan]
lr = [2e-3, 4e-3, 8e-3]
[targets]
"8e2a" = ["shape.feed_forward=8e2a@16"]
"""
GROWTH, FILES, DRIFT = 64.0, 8, 1e-3  # MB, open files, relative difference of losses: more is a finding
FAREWELL = 30.0  # seconds for the processes of an attempt to leave: later they stay behind
PATIENCE = 300.0  # seconds for one attempt, and one more per step: later it is a run that hangs


# -- what is run -------------------------------------------------------------------------------------------------------


def run_command(folder: Path, steps: int, attempt: int) -> list[str]:
    return [sys.executable, "-m", "complete_mue", "train", *_keys(folder, steps), *(["--resume"] if attempt else [])]


def ranks_command(folder: Path, steps: int, attempt: int) -> list[str]:
    return _torchrun(folder, steps, 2)


def moves_command(folder: Path, steps: int, attempt: int) -> list[str]:
    if attempt % 2:
        return _torchrun(folder, steps, 2)
    return [sys.executable, "-m", "complete_mue", "train", *_keys(folder, steps), "--resume"]


def data_command(folder: Path, steps: int, attempt: int) -> list[str]:
    for name, seed in (("data", 1), ("other", 2)):
        if not (folder.parent / name).exists():
            _prepare(folder.parent / name, seed, 300 * steps + 10_000)
    return [*run_command(folder, steps, attempt), f"task.source={folder.parent / 'data'}"]


def _prepare(folder: Path, seed: int, size: int) -> None:
    """Text that is the same whenever it is made."""
    text, draw = folder.with_suffix(".txt"), random.Random(seed)
    text.write_text("".join(draw.choices("etaoin shrdlu\n", k=size)), encoding="utf-8")
    command = [sys.executable, "-m", "complete_mue", "data", "prepare", str(text), "--out", str(folder)]
    subprocess.run(command, check=True, capture_output=True)


def sweep_command(folder: Path, steps: int, attempt: int, workers: int = 2) -> list[str]:
    grid = folder.parent / "grid.toml"
    grid.write_text(SWEEP.format(steps=max(steps // 2, 1)), encoding="utf-8")
    # One run per program: the same bits always.
    how = ("--executor", "processes", "--workers", str(workers), "--replicas", "1")
    return [sys.executable, "-m", "complete_mue", "sweep", str(grid), *how, "--out", str(folder)]


def drivers_command(folder: Path, steps: int, attempt: int) -> list[str]:
    sweep = sweep_command(folder, steps, attempt, workers=1)
    return [sys.executable, str(Path(__file__).with_name("drivers.py")), str(folder), *sweep]


def _torchrun(folder: Path, steps: int, ranks: int) -> list[str]:
    start = ("-m", "torch.distributed.run", "--standalone", "--max-restarts", "3", "--nproc-per-node", str(ranks))
    keys = _keys(folder, steps, f"expert_parallel={ranks}")
    return [sys.executable, *start, "-m", "complete_mue", "train", *keys, "--resume"]


def _keys(folder: Path, steps: int, *more: str) -> tuple[str, ...]:
    return (*RUN, f"budget.steps={steps}", *more, "--out", str(folder))


@dataclass(frozen=True)
class Kind:
    """A kind of run: how it is started, how it may be disturbed, and whether it ends with the same bits."""

    name: str
    command: Callable[[Path, int, int], list[str]]
    blows: tuple[str, ...]
    exact: bool = True


KINDS = (
    Kind("run", run_command, ("SIGKILL", "SIGTERM", "SIGINT")),
    Kind("ranks", ranks_command, ("SIGKILL to all", "SIGKILL to a rank", "SIGTERM to a rank", "SIGTERM")),
    Kind("moves", moves_command, ("SIGKILL to all", "SIGTERM"), exact=False),
    Kind("data", data_command, ("SIGKILL", "SIGTERM")),
    Kind("sweep", sweep_command, ("SIGKILL", "SIGKILL to a worker", "SIGTERM", "SIGINT")),
    Kind("drivers", drivers_command, ("SIGKILL to all", "SIGKILL to a worker")),
)
SWEEPS = ("sweep", "drivers")
# What a run says that cannot go on: no checkpoint is sound, or a damaged state.json names another config.
REFUSALS = ("none of its checkpoints can be used", "belongs to another config")


@dataclass(frozen=True)
class Moment:
    """So many seconds after the start, or after training began."""

    training: bool
    seconds: float

    def has_come(self, spent: float, first: float | None) -> bool:
        """After ``spent`` seconds, where training began at ``first``."""
        since = first if self.training else 0.0
        return since is not None and spent >= since + self.seconds


@dataclass(frozen=True)
class Attempt:
    """What became of one start: exit status (negative: a signal), its output, how long it took."""

    status: int
    output: str
    seconds: float
    blow: str | None
    watched: Watched


# -- the soak ----------------------------------------------------------------------------------------------------------


@dataclass
class Round:
    """One run, disturbed and left to finish."""

    kind: str
    blows: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    refusals: int = 0  # starts that found no sound checkpoint and said so
    attempts: int = 0
    seconds: float = 0.0
    difference: float | None = None  # largest relative difference of a loss to the undisturbed run's
    peak_mb: float = 0.0
    most_files: int = 0
    slowest_farewell: float = 0.0  # seconds until the last process of a killed attempt was gone


@dataclass
class Reference:
    """The undisturbed run of a kind."""

    ending: dict[str, Any]
    seconds: float
    first: float  # when the first metrics came
    peak_mb: float
    growth_mb: float | None = None  # in the second half of a longer run; None where there was none
    growth_files: int | None = None


class Soak:
    """Rounds of disturbed runs in one folder."""

    def __init__(self, folder: Path, seed: int, steps: int, say: Callable[[str], None], blows: int = BLOWS) -> None:
        self.folder, self.steps, self.say, self.blows = folder, steps, say, blows
        self.draw, self.mark = random.Random(seed), f"{os.getpid()}-{time.time_ns()}"
        self.references: dict[str, Reference] = {}
        self.rounds: list[Round] = []
        self.found: list[str] = []

    def undisturbed(self, kind: Kind) -> None:
        """Train a kind once as it should be, to compare with, and see whether it grows."""
        run = self._fresh(f"{kind.name}-undisturbed")
        self.say(f"{kind.name}: undisturbed")
        attempt = self._start(kind, run, 1 if kind.name == "moves" else 0, None)
        if not self._finished(kind, attempt, "undisturbed"):
            raise SystemExit(f"nothing to compare with: {self.found[-1]}")
        watched = attempt.watched
        self.references[kind.name] = Reference(
            ending(kind, run), attempt.seconds, watched.first or 0.0, max(watched.memory, default=0.0)
        )

    def longer(self, kind: Kind, steps: int) -> None:
        """Train undisturbed for longer, to see whether it grows."""
        run = self._fresh(f"{kind.name}-longer")
        self.say(f"{kind.name}: {steps} steps undisturbed, for its memory")
        attempt = self._start(kind, run, 0, None, steps=steps)
        self._finished(kind, attempt, "the longer run")
        known, (memory, files) = self.references[kind.name], attempt.watched.growth()
        known.growth_mb, known.growth_files = memory, files
        if memory > GROWTH or files > FILES:
            self.found.append(f"{kind.name}: grew by {memory:.0f} MB and {files} open files in {steps} steps")

    def round(self, kind: Kind, number: int) -> None:
        """Disturb a run a few times, let it finish, compare."""
        run, began, this = self._fresh(f"{kind.name}-{number}"), time.monotonic(), Round(kind.name)
        self.rounds.append(this)
        refused = False
        for attempt in range(self.draw.randint(1, self.blows)):
            blow = self.draw.choice(kind.blows)
            self.say(f"round {number}, {kind.name}: attempt {attempt + 1}, {blow}")
            done = self._start(kind, run, attempt, blow, restart=refused)
            this.blows += [blow] if done.blow else []
            self._note(this, done, run)
            refused = self._refused(kind, run, done, number, this)
            if not refused:
                self._after_blow(kind, done, number)
            if kind.name == "data":
                self._replace(kind, run, number, this)
            elif kind.name not in SWEEPS and self.draw.random() < 0.5 and (hurt := damage(run, self.draw)):
                this.damage.append(hurt)
        self.say(f"round {number}, {kind.name}: left to finish")
        last = self._start(kind, run, this.attempts, None, restart=refused)
        self._note(this, last, run)
        if self._refused(kind, run, last, number, this):
            last = self._start(kind, run, this.attempts, None, restart=True)
            self._note(this, last, run)
        this.seconds = time.monotonic() - began
        if self._finished(kind, last, f"round {number}"):
            self._compare(kind, run, this, number)
        for stray in strays(run, run.parent / "temporary"):
            if any(part.startswith("before-") for part in stray.parts):  # set aside as it was found
                continue
            self.found.append(f"round {number}, {kind.name}: {stray.relative_to(run.parent)} was left behind")
        shutil.rmtree(run.parent)

    def end(self) -> None:
        """Kill whatever is still running, and what that starts meanwhile; return when nothing is left."""
        self._left(kill=True)

    def _left(self, *, kill: bool = False) -> list[int]:
        """Wait until nothing is running: the processes that stay behind."""
        began = time.monotonic()
        while (left := marked(self.mark)) and time.monotonic() - began < FAREWELL:
            send(left if kill else [], signal.SIGKILL)
            time.sleep(0.1)
        return left

    # -- one attempt ---------------------------------------------------------------------------------------------------

    def _fresh(self, name: str) -> Path:
        (self.folder / name / "temporary").mkdir(parents=True)
        return self.folder / name / "run"

    def _start(
        self, kind: Kind, run: Path, attempt: int, blow: str | None, *, steps: int | None = None, restart: bool = False
    ) -> Attempt:
        """Start, wait for a random moment, strike, wait for the end."""
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(run.parent / "temporary"), MARK: self.mark,
            "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        steps, moment = steps or self.steps, self._moment(kind) if blow else None
        command = kind.command(run, steps, attempt)
        if restart:
            command = ["--restart" if word == "--resume" else word for word in command]
        log, struck, watched, clock = run.parent / "output.txt", None, Watched(), time.time()
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
            while process.poll() is None:
                spent = watched.look(process.pid, lambda: trains(kind, run, clock))
                if moment is not None and struck is None and moment.has_come(spent, watched.first):
                    struck = blow if strike(process.pid, str(blow), self.draw) else None
                if spent > PATIENCE + steps:
                    self.found.append(f"{run.parent.name}: hung for {spent:.0f} s (blow: {struck}); killed")
                    send(tree(process.pid), signal.SIGKILL)
                time.sleep(0.25)
        text = log.read_text(encoding="utf-8", errors="replace")
        return Attempt(process.returncode, text, time.monotonic() - watched.began, struck, watched)

    def _moment(self, kind: Kind) -> Moment:
        """When to strike: sometimes while it starts, mostly while it trains, and soon, so that work is left to do."""
        known, part = self.references[kind.name], self.draw.random()
        if part < 0.15:
            return Moment(False, self.draw.uniform(0.2, known.first))
        return Moment(True, (known.seconds - known.first) * self.draw.uniform(0.0, 0.8 if part < 0.3 else 0.25))

    def _note(self, this: Round, done: Attempt, run: Path) -> None:
        this.attempts += 1
        this.peak_mb = max([this.peak_mb, *done.watched.memory])
        this.most_files = max([this.most_files, *done.watched.files])
        began, left = time.monotonic(), self._left()
        this.slowest_farewell = max(this.slowest_farewell, time.monotonic() - began)
        if left:
            self.found.append(f"{run.parent.name}: {len(left)} processes stayed behind after {done.blow or 'the end'}")
            self.end()
        for lock in held(run):
            self.found.append(f"{run.parent.name}: {lock.relative_to(run)} is still locked")

    def _refused(self, kind: Kind, run: Path, done: Attempt, number: int, this: Round) -> bool:
        """Whether it would not go on from what it found; with a sound checkpoint there, that is a finding."""
        said = next((words for words in REFUSALS if words in done.output), None)
        if said is None or done.status == 0:
            return False
        this.refusals += 1
        if said == REFUSALS[0] and (left := sound(run)):
            self._keep(f"round {number}, {kind.name}: refused, and {left} are sound", done)
        return True

    def _replace(self, kind: Kind, run: Path, number: int, this: Round) -> None:
        """Put other data in the place of a run's: it must say so and leave everything as it is."""
        place, aside = run.parent / "data", run.parent / "aside"
        if not sound(run):  # nothing to lose yet: it would start with what is there
            return
        before = _content(run)
        place.rename(aside)
        shutil.copytree(run.parent / "other", place)
        done = self._start(kind, run, 1, None)
        shutil.rmtree(place)
        aside.rename(place)
        this.damage.append("replaced data")
        if done.status != 2 or "other data" not in done.output:
            self._keep(f"round {number}, {kind.name}: exit status {done.status} on replaced data", done)
        if _content(run) != before:
            self.found.append(f"round {number}, {kind.name}: a run that was refused changed its directory")

    def _after_blow(self, kind: Kind, done: Attempt, number: int) -> None:
        """What a struck process may say: it saved and left (130), a signal ended it, or it was done already."""
        # 1: torchrun's word for any failure, and that of two drivers of which one was killed
        allowed = {0, 130, 1} if kind.name in ("ranks", "moves", "drivers") else {0, 130}
        if done.status >= 0 and done.status not in allowed:
            self._keep(f"round {number}, {kind.name}: exit status {done.status} after {done.blow}", done)
        elif kind.name in ("run", "data", *SWEEPS) and "Traceback" in done.output and done.blow != "SIGINT":
            self._keep(f"round {number}, {kind.name}: a traceback after {done.blow}", done)

    def _finished(self, kind: Kind, done: Attempt, when: str) -> bool:
        well = done.status == 0 and "Traceback" not in done.output
        if not well:
            self._keep(f"{when}, {kind.name}: left alone, it ended with exit status {done.status}", done)
        return well

    def _keep(self, what: str, done: Attempt) -> None:
        lines = done.output.strip().splitlines()
        telling = [line for line in lines if "error" in line.lower()][:4] or lines[-4:]
        self.found.append(f"{what}: {' | '.join(telling)[:600]}")

    def _compare(self, kind: Kind, run: Path, this: Round, number: int) -> None:
        right, mine = self.references[kind.name].ending, ending(kind, run)
        if right.keys() != mine.keys():
            self.found.append(f"round {number}, {kind.name}: {len(mine)} losses and files, undisturbed {len(right)}")
            return
        losses = [(mine[key], loss) for key, loss in right.items() if isinstance(loss, float)]
        this.difference = max((abs(one / two - 1) for one, two in losses), default=0.0)
        if this.difference > (0 if kind.exact else DRIFT):
            self.found.append(f"round {number}, {kind.name}: a loss differs by {this.difference:.2g} of itself")
        elif kind.exact and mine != right:
            self.found.append(f"round {number}, {kind.name}: losses are the same, and its last checkpoint differs")


def damage(run: Path, draw: random.Random) -> str:
    """Hurt the newest checkpoint, or the two newest, or leave a stray or copied one, or a torn line of metrics; says
    what was done.
    """
    folders = [folder for folder in sorted((run / "checkpoints").glob("step-*")) if any(folder.iterdir())]
    if not folders:
        return ""
    how = draw.choice(("cut", "overwritten", "emptied", "removed", "torn metrics", "stray", "copied"))
    if how == "torn metrics":
        with (run / "metrics.jsonl").open("ab") as file:
            file.write(b'{"step": 3, "lo')
    elif how in ("stray", "copied"):
        later = folders[-1].with_name(f"step-{int(folders[-1].name[5:]) + draw.randint(1, 99):08d}")
        later.mkdir(exist_ok=True)
        if how == "copied":
            shutil.copytree(folders[-1], later, dirs_exist_ok=True)
    else:
        hurt = folders[-draw.choice((1, 1, 2)) :]
        for folder in hurt:
            _hurt(draw.choice(sorted(folder.iterdir())), how, draw)
        return f"{how}, both" if len(hurt) == 2 else how
    return how


def _hurt(path: Path, how: str, draw: random.Random) -> None:
    content = path.read_bytes()
    if how == "removed":
        path.unlink()
    elif how == "overwritten" and content:
        at = draw.randrange(len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
    else:
        path.write_bytes(content[: draw.randrange(len(content))] if how == "cut" and content else b"")


def sound(run: Path) -> list[str]:
    """Names of checkpoints whose files have the sums they were written with, and whose step is that of their name."""
    found = []
    for folder in sorted((run / "checkpoints").glob("step-*")):
        try:
            state = json.loads((folder / "state.json").read_bytes())
            sums = {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in state["sha256"]}
            if sums and sums == state["sha256"] and state["step"] == int(folder.name[5:]):
                found.append(folder.name)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def _content(run: Path) -> dict[str, str]:
    """Checksums of all files of a run, but for its lock."""
    files = [path for path in run.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def trains(kind: Kind, run: Path, since: float) -> bool:
    """Whether a run that was started at ``since`` has begun to write what it finds."""
    path = run / ("sweep.json" if kind.name in SWEEPS else "metrics.jsonl")
    return path.exists() and path.stat().st_mtime >= since


def ending(kind: Kind, run: Path) -> dict[str, Any]:
    """Every loss of a run by step, or of a sweep by point; of a run that is to end with the same bits, checksums of
    its weights and moments.
    """
    if kind.name in SWEEPS:
        records = [json.loads(path.read_text()) for path in sorted((run / "ledger").glob("*.json"))]
        return {
            f"{record['id']} {place}": loss
            for record in records
            for place, loss in enumerate([record["loss"], *record["curve"]["loss"]])
        }
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = {f"{place} {line['step']}": line["loss"] for place, line in enumerate(lines)}
    result = json.loads((run / "result.json").read_text())
    last = run / "checkpoints" / f"step-{result['steps']:08d}" / "state.json"
    losses |= {"last window": result["loss"]}
    return losses | (json.loads(last.read_text())["sha256"] if kind.exact else {})


# -- the record --------------------------------------------------------------------------------------------------------


def table(soak: Soak) -> str:
    """What was done and found, one line per kind of run."""
    lines = [
        f"{'':8}{'rounds':>7}{'starts':>8}{'blows':>7}{'damage':>8}{'refused':>9}{'same':>9}{'peak MB':>9}"
        f"{'growth MB':>11}{'files':>7}{'farewell s':>12}"
    ]
    for name, reference in soak.references.items():
        done = [this for this in soak.rounds if this.kind == name and this.difference is not None]
        worst = max((this.difference or 0.0 for this in done), default=None)
        same = "–" if worst is None else "bits" if worst == 0 else f"{worst:.0e}"
        peak = max([reference.peak_mb, *(this.peak_mb for this in done)])
        lines.append(
            f"{name:8}{len(done):>7}{sum(t.attempts for t in done):>8}{sum(len(t.blows) for t in done):>7}"
            f"{sum(len(t.damage) for t in done):>8}{sum(t.refusals for t in done):>9}{same:>9}{peak:>9.0f}"
            f"{_number(reference.growth_mb):>11}{_number(reference.growth_files):>7}"
            f"{max((t.slowest_farewell for t in done), default=0.0):>12.1f}"
        )
    blows = Counter(blow for this in soak.rounds for blow in this.blows)
    hurt = Counter(how for this in soak.rounds for how in this.damage)
    for title, counted in (("blows", blows), ("damage", hurt)):
        lines.append(f"{title}: " + (", ".join(f"{n} × {what}" for what, n in counted.most_common()) or "none"))
    lines += [f"FOUND {what}" for what in soak.found] or ["nothing found"]
    return "\n".join(lines)


def record(soak: Soak, seconds: float, seed: int) -> dict[str, Any]:
    """The same as plain data."""
    references = {name: {**asdict(known), "ending": len(known.ending)} for name, known in soak.references.items()}
    return {
        "seconds": round(seconds, 1), "seed": seed, "steps": soak.steps, "undisturbed": references,
        "rounds": [asdict(this) for this in soak.rounds], "found": soak.found,
    }  # fmt: skip


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def _teller(minutes: float) -> Callable[[str], None]:
    began = time.monotonic()

    def say(text: str) -> None:
        spent = time.monotonic() - began
        line = f"{int(spent) // 60}:{int(spent) % 60:02d} of {minutes:g} min  {text}"
        print(f"\r\033[K{line}" if sys.stderr.isatty() else f"{line}\n", end="", file=sys.stderr, flush=True)

    return say


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="no new round begins after so long (default 10)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other disturbances")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps of a run (default {STEPS}); half in a sweep")
    parser.add_argument("--only", default="", help="some kinds alone: " + ",".join(kind.name for kind in KINDS))
    parser.add_argument("--rounds", type=int, default=None, help="so many rounds, whatever time they take")
    parser.add_argument("--blows", type=int, default=BLOWS, help=f"at most so many in a round (default {BLOWS})")
    parser.add_argument("--out", type=Path, help="write a JSON record")
    given = parser.parse_args(arguments)
    names = [name for name in given.only.split(",") if name] or [kind.name for kind in KINDS]
    kinds = [kind for kind in KINDS if kind.name in names]
    if len(kinds) != len(names) or given.minutes <= 0 or given.steps < 1 or given.blows < 1:
        parser.error(
            f"--only takes {', '.join(kind.name for kind in KINDS)}; --minutes, --steps and --blows are above 0"
        )
    if not Path("/proc/self/environ").exists():
        parser.error("processes are watched through /proc: run this on Linux")
    began, stopped = time.monotonic(), False
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder:
        soak = Soak(Path(folder), given.seed, given.steps, _teller(given.minutes), given.blows)
        try:
            for kind in kinds:
                soak.undisturbed(kind)
            for kind in kinds:
                if kind.name in ("run", "ranks"):
                    soak.longer(kind, max(given.steps, round(60 * given.minutes)))
            for number in itertools.count(1):
                late = time.monotonic() - began > 60 * given.minutes
                if late if given.rounds is None else number > given.rounds:
                    break
                soak.round(kinds[(number - 1) % len(kinds)], number)
        except KeyboardInterrupt:
            stopped = True
        finally:
            soak.end()
    seconds = time.monotonic() - began
    print(("\r\033[K" if sys.stderr.isatty() else "") + table(soak))
    if given.out:
        given.out.write_text(json.dumps(record(soak, seconds, given.seed), indent=1) + "\n", encoding="utf-8")
    return 130 if stopped else 1 if soak.found else 0


if __name__ == "__main__":
    sys.exit(main())
