"""The page in headless Chromium: numbers, errors, copying, live reports, keyboard, phone, dark, accessibility."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from in_browser import LAPTOP, PHONE, resize, scheme, settled, until

pytest.importorskip("selenium", reason="the browser test needs selenium (extra dev)")


def fill(browser: Any, name: str, text: str) -> None:
    """Type into a field, as a person does: once it is shown, which for some depends on what stands in others."""
    field = browser.find_element("css selector", f"[name='{name}']")
    until(browser, "arguments[0].offsetParent", field)
    field.clear()
    field.send_keys(text)


def mue(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "complete_mue", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def files_of(browser: Any, folder: Path) -> None:
    """What the page offers as files, written to ``folder``."""
    for name in ("reference", "target"):
        browser.execute_script("arguments[0].click()", browser.find_element("css selector", f"[value='{name}']"))
        (folder / f"{name}.toml").write_text(
            browser.execute_script("return document.getElementById('code').textContent")
        )


ROWS = """[...document.querySelectorAll('tr.row')].map(tr => [tr.dataset.key,
  ...[...tr.querySelectorAll('td')].map(td => td.querySelector('data') ? [td.querySelector('data').value,
  td.querySelector('data').textContent] : null)])"""


def test_typed_in_and_shown_as_the_command_line_says(open_: Callable[..., Any], tmp_path: Path) -> None:
    browser = open_()
    typed = {
        "r.width": "256", "r.depth": "12", "r.lr": "2e-3", "r.expansion": "4", "t.width": "1536", "t.depth": "24",
        "t.feed_forward": "64e6a2g1s", "t.expert_width": "768", "t.dense_layers": "1", "t.steps": "60000",
    }  # fmt: skip
    for name, text in typed.items():
        fill(browser, name, text)
    for name, text in {"rules": "complete_mue", "betas": "hold", "duration": "fixed"}.items():
        select = "const s = document.getElementById(arguments[0]); s.value = arguments[1]; "
        browser.execute_script(select + "s.dispatchEvent(new Event('input', {bubbles: true}))", name, text)
    settled(browser)
    assert "64e6a2g1s, d 1536, L 24" in browser.find_element("id", "headline").text
    assert "steps=60000" in browser.execute_script("return document.getElementById('code').textContent")
    assert browser.find_element("id", "error").is_displayed() is False
    files_of(browser, tmp_path)
    _, *words = browser.execute_script("return document.getElementById('command').textContent").split()
    printed = json.loads(mue(*words, "--format", "json", cwd=tmp_path).stdout)
    assert words[3:] == ["--rules", "complete_mue", "--betas", "hold", "--duration", "fixed"]
    assert printed["global"]["lr"] == pytest.approx(2e-3 * 4**0.25)  # four times the batch
    for form in ("multiplier", "folded"):
        browser.execute_script("arguments[0].click()", browser.find_element("css selector", f"[value='{form}']"))
        shown = browser.execute_script(f"return {ROWS}")
        expected = printed["rows" if form == "multiplier" else "folded"]
        assert len(shown) == len(expected)
        for (key, *cells), row in zip(shown, expected, strict=True):
            assert key.split(":")[0] == row["role"]
            for column, cell in zip(("multiplier", "lr", "init_std", "weight_decay", "eps"), cells, strict=True):
                if row[column] is None:
                    assert cell is None
                else:
                    assert float(cell[0]) == row[column]
                    assert cell[1] == f"{row[column]:.{4 if column == 'eps' else 6}g}"
    tiles = browser.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('#tiles div')].map(d => "
        "[d.querySelector('dt').textContent, d.querySelector('data')?.value]))"
    )
    assert float(tiles["Global lr"]) == printed["global"]["lr"]
    assert int(tiles["Active parameters"]) == printed["parameters"]["active"]
    assert int(tiles["Total parameters"]) == printed["parameters"]["total"]
    assert int(tiles["Active width H"]) == printed["feed_forward"]["active_width"]
    assert browser.find_element("id", "sde").text == f"SDE {printed['sde']['verdict']}"
    lit = browser.execute_script("return document.querySelectorAll('#target-picture .lit').length")
    assert lit == 1 + 6  # shared, active


@pytest.mark.parametrize(
    ("name", "text"),
    [("t.feed_forward", "4e8a"), ("r.lr", "fast"), ("t.width", ""), ("r.betas", "0.9"), ("t.steps", "-5")],
)
def test_mistakes_read_as_on_the_command_line(open_: Callable[..., Any], tmp_path: Path, name: str, text: str) -> None:
    from complete_mue.web.fields import toml_file

    browser = open_()
    fill(browser, name, text)
    browser.find_element("css selector", f"[name='{name}']").send_keys(" ")
    settled(browser)
    shown = browser.execute_script("return document.getElementById('error').textContent")
    form = {k: v[0] for k, v in parse_qs(urlsplit(browser.current_url).query).items()}
    for side, file in (("r", "reference.toml"), ("t", "target.toml")):
        (tmp_path / file).write_text(toml_file(side, form).text)
    assert mue("plan", "reference.toml", "target.toml", cwd=tmp_path).stderr == f"{shown}\n"
    invalid = browser.execute_script("return [...document.querySelectorAll('[aria-invalid]')].map(e => e.name)")
    assert invalid == [name]
    fill(
        browser,
        name,
        {"t.feed_forward": "8e4a", "r.lr": "1e-3", "t.width": "64", "r.betas": ".9, .9", "t.steps": "30000"}[name],
    )
    settled(browser)
    assert browser.execute_script("return document.getElementById('error').hidden")
    assert not browser.execute_script("return document.querySelectorAll('[aria-invalid], .stale').length")


def test_a_row_says_why_and_the_address_remembers(open_: Callable[..., Any], lm_plan: Any) -> None:
    browser = open_()
    browser.find_element("css selector", "tr[data-key='expert_down'] td").click()
    why = "document.querySelector('#why .text')?.dataset.text"
    assert until(browser, why) == lm_plan.explain("expert_down")
    browser.execute_script("arguments[0].click()", browser.find_element("css selector", "[value=folded]"))
    assert until(browser, why) == lm_plan.fold().explain("expert_down")
    shared = browser.current_url
    browser.get("about:blank")
    browser.get(shared)
    assert until(browser, why) == lm_plan.fold().explain("expert_down")
    assert until(browser, "document.querySelector('[value=folded]').checked")
    browser.find_element("css selector", "button[data-key='expert_down']").click()
    until(browser, "!document.querySelector('#why')")


def test_presets(open_: Callable[..., Any]) -> None:
    from selenium.webdriver.support.select import Select

    browser = open_()
    preset = Select(browser.find_element("id", "t-preset"))
    notations = {"deepseek_v3": "256e8a1s", "qwen2_moe": "60e4a", "llama": "dense, d 4096", "mixtral": "8e2a"}
    for option, notation in notations.items():
        preset.select_by_visible_text(option)
        until(browser, f"document.getElementById('headline').textContent.split('→ ')[1]?.includes('{notation}')")
        assert browser.find_element("id", "error").text == ""
    Select(browser.find_element("id", "r-preset")).select_by_visible_text("Diffusion transformer, d 128")
    until(browser, "document.querySelector('[name=\"r.lr\"]').value === '1.6e-3'")


@pytest.mark.parametrize("what", ["python", "reference", "target", "link"])
def test_copying(open_: Callable[..., Any], what: str, url: str) -> None:
    browser = open_()
    browser.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": url}
    )
    browser.execute_script("arguments[0].click()", browser.find_element("css selector", f"[value='{what}']"))
    browser.find_element("id", "copy").click()
    until(browser, "document.getElementById('copied').textContent === 'Copied.'")
    copied = browser.execute_async_script("const done = arguments[0]; navigator.clipboard.readText().then(done)")
    assert copied == browser.execute_script("return document.getElementById('code').textContent")
    expected = {"python": "import complete_mue as mue", "reference": "[shape]", "target": "[shape]", "link": url}
    assert copied.startswith(expected[what])
    if what == "link":
        assert copied == browser.current_url


def test_a_running_sweep_updates(
    open_: Callable[..., Any], folder: Path, tmp_path: Path, write_sweep: Callable[..., Path]
) -> None:
    """Records arrive one by one while the page is open, as `mue sweep` writes them: whole, by a rename."""
    whole = write_sweep(tmp_path / "whole", seeds=1, title="A running sweep", name="running")
    records = sorted((whole / "ledger").iterdir())
    running = folder / "running"
    (running / "ledger").mkdir(parents=True)
    shutil.copy(whole / "sweep.json", running)

    def arrive(record: Path) -> None:
        part = running / "ledger" / f".{record.name}.part"
        shutil.copy(record, part)
        os.replace(part, running / "ledger" / record.name)

    try:
        browser = open_(view="runs", sweep="running")
        state = "document.querySelector('[data-sweep=running] .soft')?.textContent"
        frame = "document.querySelector('#report iframe:not(.loading)')"
        report = f"{frame}?.contentDocument?.querySelector('main p.soft')?.textContent"
        assert until(browser, state).startswith("0 of 28 finished")
        assert "28 missing" in until(browser, report)
        for record in records[:20]:
            arrive(record)
        until(browser, f"{state}.startsWith('20 of 28 finished; last record')")
        until(browser, f"{report}?.includes('20 of 28 runs finished, 8 missing')")
        for record in records[20:]:
            arrive(record)
        until(browser, f"{state} === '28 of 28 finished'")
        until(browser, f"{report}?.includes('28 of 28 runs finished;')")
        assert browser.execute_script("return document.querySelectorAll('#report iframe').length") == 1
        problem = browser.execute_script("return document.querySelector('[data-sweep=linked] .problem').textContent")
        assert "leads out of runs" in problem
        browser.get("about:blank")
    finally:
        shutil.rmtree(running)


def test_the_keyboard_is_enough(open_: Callable[..., Any]) -> None:
    from selenium.webdriver import ActionChains, Keys

    browser = open_()
    named = "const e = document.activeElement; return e.name || e.id || e.dataset.key || e.className"

    def press(*keys: str) -> str:
        ActionChains(browser).send_keys(*keys).perform()
        return str(browser.execute_script(named))

    assert press(Keys.TAB) == "skip"
    seen = []
    for _ in range(80):
        seen.append(press(Keys.TAB))
        assert browser.execute_script("return document.activeElement.matches(':focus-visible')")
        if seen[-1] == "code":
            break
    wanted = ["r-preset", "r.feed_forward", "r.width", "r.lr", "t-preset", "t.feed_forward", "t.steps", "rules", "form"]
    places = [seen.index(field) for field in [*wanted, "embedding", "expert_down", "readout", "what", "copy", "code"]]
    assert places == sorted(places)
    browser.execute_script("document.querySelector('button[data-key=router]').focus()")
    assert press(Keys.ENTER) == "router"
    assert browser.execute_script("return document.activeElement.getAttribute('aria-expanded')") == "true"
    assert "router" in until(browser, "document.querySelector('#why .text').dataset.text")
    assert press(Keys.SPACE) == "router"
    until(browser, "!document.querySelector('#why')")
    browser.execute_script("document.querySelector('[name=form]').focus()")
    press(Keys.ARROW_RIGHT)
    until(browser, "document.getElementById('form-note').textContent.startsWith('For a model without multipliers')")


@pytest.mark.parametrize("width", [320, PHONE, 768, LAPTOP])
@pytest.mark.parametrize("view", ["plan", "runs"])
def test_no_width_scrolls_sideways(open_: Callable[..., Any], view: str, width: int) -> None:
    browser = open_(view=view, row="expert_down", sweep="done", compare="mup,sp,completep", axis="experts")
    resize(browser, width)
    if view == "runs":
        until(browser, "document.querySelector('#report iframe:not(.loading)')")
    wide, inner = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert inner == width
    assert wide <= width
    if width == PHONE and view == "plan":
        smallest = browser.execute_script(
            "return Math.min(...[...document.querySelectorAll('#form [name], nav a, tr.row button')]"
            ".filter(e => e.offsetParent).map(e => e.getBoundingClientRect().height))"
        )
        assert smallest >= 32  # fingers
        until(browser, "getComputedStyle(document.getElementById('jump')).visibility === 'visible'")
        browser.find_element("id", "jump").click()
        until(browser, "document.getElementById('results').getBoundingClientRect().top < 10")
    browser.get("about:blank")


@pytest.mark.parametrize(("width", "dark"), [(PHONE, True), (LAPTOP, False)], ids=["phone, dark", "laptop, light"])
@pytest.mark.parametrize("state", ["plan", "error", "runs"])
def test_axe_finds_nothing(open_: Callable[..., Any], state: str, width: int, dark: bool) -> None:
    axe_core = pytest.importorskip("axe_core_python", reason="needs axe-core-python (extra dev)")
    browser = open_(
        **{"view": "runs"} if state == "runs" else {"row": "expert_down", "form": "folded", "compare": "mup,sp"}
    )
    resize(browser, width)
    scheme(browser, "dark" if dark else "light")
    if state == "error":
        fill(browser, "r.lr", "fast")
        settled(browser)
        assert browser.find_element("id", "error").is_displayed()
    if state == "runs":
        until(browser, "document.querySelector('#report iframe:not(.loading)')")
    else:
        for details in browser.find_elements("css selector", "details:not([open])"):
            browser.execute_script("arguments[0].open = true", details)
    script = files(axe_core.__name__).joinpath("axe.min.js").read_text(encoding="utf-8")
    browser.execute_script(script)
    # The report in the frame has tests of its own.
    found = browser.execute_async_script(
        "const done = arguments[0]; axe.run({exclude: [['iframe']]}, {iframes: false}).then(r => done(r.violations.map("
        "v => v.id + ': ' + v.nodes.map(n => n.target.join(' ') + ' ' + n.failureSummary).join(' | '))))"
    )
    browser.get("about:blank")
    assert found == []


def test_nothing_is_fetched_from_elsewhere(open_: Callable[..., Any], url: str) -> None:
    browser = open_(view="runs", sweep="done")
    until(browser, "document.querySelector('#report iframe:not(.loading)')")
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert asked
    assert [u for u in asked if not u.startswith((url, "data:", "about:"))] == []
    browser.get("about:blank")
