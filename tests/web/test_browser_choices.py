"""The page's choices in headless Chromium: files, rule sets side by side, curves, numbers as typed, a pasted config."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from in_browser import settled, until

pytest.importorskip("selenium", reason="the browser test needs selenium (extra dev)")

GLM = {
    "model_type": "glm4_moe", "hidden_size": 4096, "num_hidden_layers": 46, "num_attention_heads": 96, "head_dim": 128,
    "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 128, "num_experts_per_tok": 8,
    "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
    "intermediate_size": 8192, "rope_scaling": {"factor": 32.0}, "architectures": ["LlamaForCausalLM"],
}  # fmt: skip


def choose(browser: Any, name: str, value: str) -> None:
    browser.execute_script(
        "arguments[0].click()", browser.find_element("css selector", f"[name='{name}'][value='{value}']")
    )


def again(browser: Any) -> None:
    """The same address in a fresh page."""
    shared = browser.current_url
    browser.get("about:blank")
    browser.get(shared)


def test_the_target_is_in_sight(open_: Callable[..., Any]) -> None:
    browser = open_()
    metrics = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    shown = browser.execute_script(
        "return [...document.querySelectorAll('[name^=\"t.\"], #rules')].filter(e => e.offsetParent)"
        ".map(e => [e.name, e.getBoundingClientRect().bottom])"
    )
    assert {"t.feed_forward", "t.width", "t.depth", "t.batch_tokens", "t.steps", "rules"} <= {name for name, _ in shown}
    assert max(bottom for _, bottom in shown) <= 900
    assert browser.execute_script("return scrollY + document.getElementById('form').scrollTop") == 0


@pytest.mark.parametrize("what", ["torchtitan", "megatron", "deepspeed", "hf", "json", "csv"])
def test_a_tab_shows_and_saves_the_file(open_: Callable[..., Any], lm_plan: Any, tmp_path: Path, what: str) -> None:
    from complete_mue.export import EXPORTS, export
    from complete_mue.plan.render import to_csv

    browser = open_()
    folder = {"behavior": "allow", "downloadPath": str(tmp_path), "eventsEnabled": False}
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", folder)
    choose(browser, "what", what)
    until(browser, f"document.getElementById('code').dataset.what === '{what}'")
    text = browser.execute_script("return document.getElementById('code').textContent")
    expected = (
        export(lm_plan, what) if what in EXPORTS else {"json": lm_plan.to_json() + "\n", "csv": to_csv(lm_plan)}[what]
    )
    assert text == expected
    browser.find_element("id", "download").click()
    deadline, saved = time.monotonic() + 60, ""
    while saved != expected and time.monotonic() < deadline:
        time.sleep(0.05)
        files = [path for path in tmp_path.iterdir() if path.suffix in (".py", ".json", ".csv")]
        saved = files[0].read_text(encoding="utf-8") if files else ""
    assert saved == expected
    again(browser)
    until(browser, f"document.getElementById('code')?.dataset.what === '{what}'")


def test_what_a_tool_cannot_express_is_said_in_its_tab(open_: Callable[..., Any]) -> None:
    browser = open_(rules="complete_mue", what="megatron")
    field = browser.find_element("css selector", "[name='t.feed_forward']")
    field.clear()
    field.send_keys("32e2a@512+16e1a@256")
    width = browser.find_element("css selector", "[name='t.expert_width']")
    width.clear()
    width.send_keys(" ")  # clearing alone is no typing
    until(browser, "document.querySelector('#code.error')?.textContent.includes('megatron')")
    assert not browser.find_element("id", "download").is_displayed()
    choose(browser, "what", "csv")
    until(browser, "!document.getElementById('download').hidden && !document.querySelector('#code.error')")


def test_rule_sets_side_by_side(open_: Callable[..., Any]) -> None:
    browser = open_(rules="complete_mue")
    assert not browser.find_element("id", "compare-scroll").is_displayed()
    for name in ("complete_mue_sparse", "sp"):
        browser.execute_script("arguments[0].click()", browser.find_element("css selector", f"#others [value={name}]"))
    columns = "[...document.querySelectorAll('#compare-head th')].map(e => e.textContent).join()"
    until(browser, f"{columns} === 'role,complete_mue,complete_mue_sparse,sp'")
    marked = "[...document.querySelectorAll('#compare-rows .differs')].map(e => e.dataset.role)"
    assert {"expert_up", "router"} <= {*browser.execute_script(f"return {marked}")}
    browser.execute_script("arguments[0].click()", browser.find_element("css selector", "#others [value=sp]"))
    until(browser, f"{columns} === 'role,complete_mue,complete_mue_sparse'")
    assert browser.execute_script(f"return {marked}") == ["expert_up"]
    again(browser)
    until(browser, f"{columns} === 'role,complete_mue,complete_mue_sparse'")
    choose(browser, "by", "init_std")
    until(browser, f"{marked}.length === 0")
    again(browser)
    until(browser, f"{columns} !== '' && document.querySelector('[name=by][value=init_std]').checked")


def test_a_curve_with_the_present_point(open_: Callable[..., Any], lm_plan: Any) -> None:
    from selenium.webdriver.support.select import Select

    browser = open_()
    now = "document.querySelector('#plot-{} .ring')?.parentNode.getAttribute('aria-label')"
    until(browser, now.format("lr"))
    Select(browser.find_element("id", "plot-role")).select_by_value("expert_down")
    for axis, x in (("experts", "128"), ("sparsity", "16"), ("width", "1024")):
        choose(browser, "axis", axis)
        row = lm_plan.row("expert_down")
        for column, value in (("lr", row.lr), ("init_std", row.init_std)):
            until(browser, f"/^{value:.4g} .* {x}$/.test({now.format(column)})")
    choose(browser, "axis", "experts")
    choose(browser, "form", "folded")
    folded = f"/^{lm_plan.fold().row('expert_down').init_std:.4g} .* 128$/.test({now.format('init_std')})"
    until(browser, folded)
    again(browser)
    until(browser, folded)
    assert browser.execute_script("return document.getElementById('plot-role').value") == "expert_down"


def test_numbers_as_typed(open_: Callable[..., Any]) -> None:
    browser = open_()
    for name, typed in (("t.batch_tokens", "4M"), ("t.steps", "1e5"), ("r.batch_tokens", "262_144")):
        field = browser.find_element("css selector", f"[name='{name}']")
        field.clear()
        field.send_keys(typed)
    settled(browser)
    shown = browser.execute_script("return document.getElementById('code').textContent")
    assert "batch_tokens=4000000, steps=100000" in shown
    assert "batch_tokens=262144" in shown
    assert not browser.find_element("id", "error").is_displayed()


def paste(browser: Any, text: str) -> None:
    script = "const e = document.getElementById('t-config'); e.closest('details').open = true; e.value = arguments[0];"
    browser.execute_script(f"{script} e.dispatchEvent(new Event('input', {{bubbles: true}}))", text)


def test_a_pasted_config_is_the_target(open_: Callable[..., Any]) -> None:
    browser = open_()
    headline = "document.getElementById('headline').textContent"
    paste(browser, json.dumps({**LLAMA, "quantization_config": {"ignore": ["x" * 50_000]}}, indent=2))
    until(browser, f"{headline}.endsWith('dense, d 2048, L 16')")
    assert not browser.find_element("id", "t-width").is_displayed()
    again(browser)
    until(browser, f"{headline}.endsWith('dense, d 2048, L 16')")
    browser.find_element("id", "unpaste").click()
    until(browser, "document.getElementById('t-width').offsetParent")
    values = "['feed_forward', 'width', 'depth', 'head_dim'].map(key => document.getElementById(`t-${key}`).value)"
    assert browser.execute_script(f"return {values}") == ["dense@8192", "2048", "16", "64"]
    assert "t.config" not in browser.current_url
    paste(browser, json.dumps({**GLM, "tie_word_embeddings": True}))
    until(browser, "document.getElementById('config-note').textContent.includes('Warning: tie_word_embeddings = true')")
    paste(browser, json.dumps(GLM))
    until(browser, f"{headline}.includes('128e8a1s, d 4096, L 46')")
    until(browser, "!document.getElementById('config-note').textContent.includes('Warning')")
    choose(browser, "what", "target")
    until(browser, "document.getElementById('code').textContent.includes('first_k_dense_replace')")
    paste(browser, '{"model_type": "no_such_family"}')
    until(browser, "document.querySelector('#t-config[aria-invalid]')")
    assert "no_such_family" in browser.find_element("id", "error").text
