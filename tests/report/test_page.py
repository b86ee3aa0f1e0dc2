"""The page in a real browser, offline: its numbers, its tooltips, its width, and that it asks for nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from complete_mue.lab.report import summarize
from complete_mue.lab.report.html_page import report_dict, report_html
from complete_mue.lab.report.tables import tables

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
selenium = pytest.importorskip("selenium", reason="the browser test needs selenium (extra dev)")
pytestmark = pytest.mark.skipif(not CHROMIUM or not DRIVER, reason="needs chromium and chromedriver on the PATH")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = str(CHROMIUM)
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def written(synthetic: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Three sweeps, one of each kind, on one page, and the report's JSON."""
    root = tmp_path_factory.mktemp("page")
    folders = [
        synthetic(
            root / "a",
            other_drifts={"sp": {"8e2a": 1.0, "16e4a": 2.0, "64e16a": 2.8}},
            diverged=lambda target, rules, value: target == "64e16a" and value > 0.06,
        ),
        synthetic(root / "b", missing=lambda target, rules, value: target == "64e16a" and value > 0.01, seeds=1),
        synthetic(root / "c", grid=(0.008,), title="Long " + "unbroken" * 12),
    ]
    summaries = [summarize(folder) for folder in folders]
    path = root / "report.html"
    path.write_text(report_html(summaries), encoding="utf-8")
    return path, json.loads(json.dumps(report_dict(summaries)))


@pytest.fixture
def page(browser: Any, written: tuple[Path, dict[str, Any]]) -> dict[str, Any]:
    """The page, freshly opened; returns the report's JSON."""
    path, report = written
    browser.get("about:blank")
    browser.get_log("performance")
    browser.get_log("browser")
    browser.get(path.as_uri())
    assert browser.title == "Transfer report, 3 sweeps"
    return report


def test_nothing_is_requested_and_nothing_complains(browser: Any, page: dict[str, Any]) -> None:
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith("data:")] == [browser.current_url]
    assert browser.get_log("browser") == []


def test_the_page_holds_the_json_and_the_tables(
    browser: Any, page: dict[str, Any], written: tuple[Path, dict[str, Any]]
) -> None:
    path, _ = written
    embedded = json.loads(browser.execute_script("return document.getElementById('report').textContent"))
    assert embedded == page
    cells = browser.execute_script(
        "return [...document.querySelectorAll('tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    rows = [[*row.cells[1:]] for name in "abc" for table in tables(summarize(path.parent / name)) for row in table.rows]
    assert [cell for cell in cells if len(cell) > 1] == rows


def test_verdict_comes_first(browser: Any, page: dict[str, Any]) -> None:
    first = browser.execute_script(
        "return [...document.querySelector('section').children].map(e => e.tagName + '.' + e.className)"
    )
    assert first.index("UL.verdict") < first.index("DIV.pictures") < first.index("DIV.scroll")
    text = browser.execute_script("return document.querySelector('ul.verdict').textContent")
    for line in page["sweeps"][0]["verdict"]:
        assert line["text"] in text


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
def test_no_width_makes_the_page_scroll_sideways(browser: Any, page: dict[str, Any], width: int) -> None:
    metrics = {"width": width, "height": 780, "deviceScaleFactor": 2, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        wide, inner = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert inner == width
        assert wide <= width
        smallest = browser.execute_script(
            "return Math.min("
            "...[...document.querySelectorAll('.chart text')].map(t => t.getBoundingClientRect().height))"
        )
        assert smallest > 8
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_tooltips_on_focus_hover_and_arrow_keys(browser: Any, page: dict[str, Any]) -> None:
    from selenium.webdriver import ActionChains, Keys

    def tip() -> tuple[bool, str]:
        return tuple(
            browser.execute_script(
                "const t = document.getElementById('tip'); return [t.classList.contains('on'), t.textContent]"
            )
        )

    assert not tip()[0]
    dots = browser.find_elements("css selector", "svg .line[data-name='8e2a'] .dot")
    curve = next(c for c in page["sweeps"][0]["scans"][0]["curves"] if c["target"] == "8e2a")
    says = [
        f"8e2a, learning rate {p['value']:.3g}: loss {p['loss']:.4f} ± {p['std']:.4f}, 3 seeds" for p in curve["points"]
    ]
    browser.execute_script("arguments[0].focus()", dots[0])
    best = curve["optimum"]
    assert tip() == (True, f"8e2a: optimum {best['value']:.3g}, loss {best['loss']:.4f}")
    ActionChains(browser).send_keys(Keys.ARROW_RIGHT).perform()
    place = says.index(tip()[1])
    ActionChains(browser).send_keys(Keys.ARROW_RIGHT).perform()
    assert tip() == (True, says[place + 1])
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert not tip()[0]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", dots[4])
    ActionChains(browser).move_to_element(dots[4]).perform()
    assert tip() == (True, dots[4].get_attribute("aria-label"))
    box = browser.execute_script("return document.getElementById('tip').getBoundingClientRect().toJSON()")
    assert box["left"] >= 0
    assert box["right"] <= browser.execute_script("return innerWidth")


def test_the_legend_hides_and_shows_a_line(browser: Any, page: dict[str, Any]) -> None:
    button = browser.find_element("css selector", "figure .legend button[data-name='8e2a']")
    lines = browser.find_element("css selector", "figure").find_elements("css selector", ".line[data-name='8e2a']")
    assert len(lines) == 2  # one per rule set
    browser.execute_script("arguments[0].click()", button)
    assert button.get_attribute("aria-pressed") == "false"
    assert not any(line.is_displayed() for line in lines)
    browser.execute_script("arguments[0].click()", button)
    assert all(line.is_displayed() for line in lines)


def test_dark_mode_and_names_for_readers(browser: Any, page: dict[str, Any]) -> None:
    def background(scheme: str) -> str:
        feature = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
        return str(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))

    assert background("light") != background("dark")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    unnamed = browser.execute_script(
        "return [...document.querySelectorAll('svg.chart, .dot, .scroll, nav')]"
        ".filter(e => !e.getAttribute('aria-label')).length"
    )
    assert unnamed == 0
