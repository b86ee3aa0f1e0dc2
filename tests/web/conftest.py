"""A real server in a process of its own over a folder of sweeps, and a headless browser."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlencode

import pytest

from in_browser import LAPTOP, resize, scheme, until

pytest.importorskip("starlette", reason="the planner needs the extra web")
pytest.importorskip("uvicorn", reason="the planner needs the extra web")
ROOT = Path(__file__).parents[2]


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


LOAD = _load("web_load", ROOT / "tests" / "stress" / "web_load.py")
SWEEPS = _load("synthetic_sweeps", ROOT / "tests" / "report" / "conftest.py")


@pytest.fixture(scope="session")
def load() -> ModuleType:
    """The load test's own functions."""
    return LOAD


@pytest.fixture(scope="session")
def write_sweep() -> Callable[..., Path]:
    """A synthetic sweep in a folder: ``write_sweep(path, seeds=1)``."""
    return lambda folder, **changes: SWEEPS.write_sweep(folder, SWEEPS.Surface(**changes))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, write_sweep: Callable[..., Path]) -> Path:
    """What the server serves: one sweep, a damaged one, one that links out, and a secret beside the folder."""
    root = tmp_path_factory.mktemp("web")
    runs = root / "runs"
    write_sweep(runs / "done", seeds=1)
    (runs / "damaged").mkdir()
    (runs / "damaged" / "sweep.json").write_text("{")
    write_sweep(root / "elsewhere", title="SECRET")
    (runs / "linked").symlink_to(root / "elsewhere", target_is_directory=True)
    shutil.copytree(runs / "done", runs / "leaky")
    record = next((runs / "leaky" / "ledger").iterdir())
    secret = root / "elsewhere" / record.name
    shutil.move(record, secret)
    record.symlink_to(secret)
    return runs


@pytest.fixture(scope="session")
def server(folder: Path) -> Iterator[Any]:
    with LOAD.started(folder) as running:
        yield running


@pytest.fixture(scope="session")
def url(server: Any) -> str:
    return f"http://{server.host}:{server.port}/"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    pytest.importorskip("selenium", reason="the browser test needs selenium (extra dev)")
    chromium, driver_path = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver_path:
        pytest.skip("needs chromium and chromedriver on the PATH")
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_path))
    yield driver
    driver.quit()


@pytest.fixture
def open_(browser: Any, url: str) -> Iterator[Callable[..., Any]]:
    """Open the page with parameters and wait for its plan; afterwards, nothing may have complained."""

    def opened(**parameters: str) -> Any:
        browser.get("about:blank")
        browser.get_log("browser")
        browser.get(f"{url}?{urlencode(parameters)}" if parameters else url)
        until(browser, "document.querySelector('[aria-current=page]')")
        return browser

    resize(browser, LAPTOP)
    scheme(browser, "light")
    yield opened
    assert browser.get_log("browser") == []
