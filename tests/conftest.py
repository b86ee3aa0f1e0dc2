"""Shared by all tests: the paper's large language model, other random numbers on request, and what did not run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

import complete_mue as mue

sys.path.insert(0, str(Path(__file__).parent))
ROOT = Path(__file__).parents[1]

with contextlib.suppress(ModuleNotFoundError):  # GPU machines may come without it; the algebra is tested elsewhere
    from hypothesis import settings

    settings.register_profile("mue", deadline=None, derandomize=True)
    settings.load_profile("mue")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, default=1, help="run each test with N draws of torch's numbers")
    parser.addoption("--without-onednn", action="store_true", help="torch computes without oneDNN")
    parser.addoption("--with-tools", action="store_true", help="a tool that is missing is a failure")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--without-onednn"):
        import torch

        torch.backends.mkldnn.set_flags(False)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    count = metafunc.config.getoption("--seeds")
    once = metafunc.definition.get_closest_marker("numeric") or hasattr(metafunc.function, "hypothesis")
    if count > 1 and not once:
        metafunc.parametrize("random_numbers", range(count), indirect=True, ids=lambda draw: f"draw {draw}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked ``gpu`` run where there is one."""
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """No test runs nowhere: one that lacks a tool is marked, and `make test-tools`, where none is missing, runs it."""
    import not_run

    report = yield
    lacks = report.skipped and not_run.remedy(str(report.longrepr)) == "make test-tools"
    if lacks and (item.config.getoption("--with-tools") or not item.get_closest_marker("tools")):
        report.outcome = "failed"
        report.longrepr = f"{report.longrepr}: mark the test with `tools`, name what it needs in tests/tools.txt"
    return report


@pytest.fixture(autouse=True)
def random_numbers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees what another drew; the draws of ``--seeds`` shift every seed, so that equal ones stay equal."""
    if (torch := sys.modules.get("torch")) is None:
        return
    shift = getattr(request, "param", 0) * 0x9E3779B1  # odd: torch takes the last 32 bits of a seed
    if shift:
        seed_all = torch.manual_seed

        class Shifted(torch.Generator):  # type: ignore[misc, name-defined]
            def manual_seed(self, seed: int) -> Shifted:
                super().manual_seed((seed + shift) % 2**63)
                return self

        monkeypatch.setattr(torch, "Generator", Shifted)
        monkeypatch.setattr(torch, "manual_seed", lambda seed: seed_all((seed + shift) % 2**63))
    torch.manual_seed(0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What did not run, and what would run it."""
    import not_run

    reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])]
    if "not slow" in terminalreporter.config.option.markexpr:
        reasons.append("tests marked slow")
    if reasons:
        terminalreporter.write_sep("-", "did not run")
        terminalreporter.write_line("\n".join(not_run.lines(reasons)))


@pytest.fixture
def root() -> Path:
    return ROOT


@pytest.fixture
def lm_reference() -> mue.Reference:
    return mue.Reference(
        shape=mue.ModelShape(width=128, depth=32, feed_forward=mue.FeedForward.dense(128)),
        budget=mue.Budget(batch_tokens=128 * 2048, steps=25_000),
        hyper=mue.Hyper(lr=1e-3, weight_decay=0.1, init_std=0.01, betas=(0.95, 0.95), eps=1e-8),
    )


@pytest.fixture
def lm_plan(lm_reference: mue.Reference) -> mue.Plan:
    block = mue.FeedForward.parse("128e8a4g1s", expert_width=512)
    shape = mue.ModelShape(width=1024, depth=32, feed_forward=block, dense_layers=2)
    return mue.transfer(lm_reference, shape, mue.Budget(batch_tokens=512 * 2048, steps=100_000))
