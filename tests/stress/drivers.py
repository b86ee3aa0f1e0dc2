"""Two drivers of one sweep at the same time, and a report on it again and again, for tests/stress/soak.py.

    python tests/stress/drivers.py FOLDER COMMAND…

Exit status 1 if a driver was killed or failed, or a report ended with a traceback.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main(folder: Path, command: list[str]) -> int:
    """Start both, report as long as one is running, wait for them."""
    drivers = [subprocess.Popen(command) for _ in range(2)]
    broken = 0
    while any(driver.poll() is None for driver in drivers):
        if not (folder / "sweep.json").exists():
            _wait(drivers[0])
            continue
        report = subprocess.run(
            [sys.executable, "-m", "complete_mue", "report", str(folder)], capture_output=True, text=True, check=False
        )
        if report.returncode == 1:
            print(report.stderr, file=sys.stderr, flush=True)
            broken += 1
        _wait(drivers[0])
    return 1 if broken or any(driver.wait() for driver in drivers) else 0


def _wait(driver: subprocess.Popen[bytes]) -> None:
    try:
        driver.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
