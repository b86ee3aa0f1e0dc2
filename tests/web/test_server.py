"""The server over real sockets: what it answers, what it refuses, and that it stays up."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from complete_mue.web.runs import Runs


def ask(server: Any, target: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Any:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
    connection.request(method, target, body, headers)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return response.status, dict(response.headers), text


def test_the_page_loads_nothing_from_elsewhere(server: Any) -> None:
    status, headers, page = ask(server, "/")
    assert status == 200
    assert headers["content-type"].startswith("text/html")
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    for target in ("/", "/planner.css", "/planner.js"):
        text = ask(server, target)[2].replace(b"http://www.w3.org/2000/svg", b"")  # a name, not an address
        assert b"http:" not in text
        assert b"https:" not in text
    assert b"style=" not in page
    assert b"onclick" not in page


def test_plans_are_the_command_lines(server: Any, load: ModuleType, root: Path, tmp_path: Path) -> None:
    answer = json.loads(ask(server, f"/api/plan?{urlencode(load.PLAN)}")[2])
    for name in ("reference", "target"):
        (tmp_path / f"{name}.toml").write_text(answer["copy"][name])
    command = [sys.executable, "-m", "complete_mue", "plan", "reference.toml", "target.toml", "--format", "json"]
    printed = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert answer["plan"] == json.loads(printed)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("127.0.0.1:9", 200), ("[::1]:80", 200), ("192.168.0.7", 200),
        ("evil.example", 403), ("localhost.evil.example", 403), ("", 403), ("127.0.0.1@evil.example", 403),
        ("127.0.0.1:99999999", 403),
    ],
)  # fmt: skip
def test_only_hosts_that_nobody_can_take(server: Any, host: str, status: int) -> None:
    assert ask(server, "/api/presets", Host=host)[0] == status


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (("/", "POST", b"x"), 405), (("/", "DELETE"), 405), (("/", "GET", b"x"), 413),
        (("/nothing",), 404), (("/runs/nothing",), 404), (("/api/plan/x",), 404),
        (("/?" + "a" * 9000,), 414), (("/" + "a" * 20_000,), 414), (("/", "HEAD"), 200),
    ],
)  # fmt: skip
def test_what_is_refused(server: Any, request_: tuple[Any, ...], status: int) -> None:
    assert ask(server, *request_)[0] == status


@pytest.mark.parametrize("query", ["a=1&" * 100, "rules=sp&rules=mup", "%ff=%fe", "r.width=1", "", "&&&=;"])
def test_queries_that_make_no_plan_are_answered_in_words(server: Any, query: str) -> None:
    status, _, body = ask(server, f"/api/plan?{query}")
    assert status == 200
    assert json.loads(body)["error"]


@pytest.mark.parametrize(
    "change",
    [
        {"r.lr": "1e308", "t.width": "1"}, {"t.width": str(10**15), "r.width": "1"}, {"r.lr": "1e-320"},
        {"r.eps": "1e300", "t.steps": "100000000000"}, {"t.feed_forward": "1000000000000000e8a"},
    ],
    ids=str,
)  # fmt: skip
def test_extreme_numbers_are_answered(server: Any, load: ModuleType, change: dict[str, str]) -> None:
    status, _, body = ask(server, f"/api/plan?{urlencode({**load.PLAN, **change})}")
    assert status == 200
    assert {"plan", "error"} & set(json.loads(body))


def test_runs_stay_inside_the_folder(server: Any, folder: Path) -> None:
    sweeps = {sweep["name"]: sweep for sweep in json.loads(ask(server, "/api/runs")[2])["sweeps"]}
    assert sweeps["done"]["progress"]["finished"] == 28
    assert "not valid" in sweeps["damaged"]["error"] or "not a sweep" in sweeps["damaged"]["error"]
    for name in ("linked", "leaky"):
        assert "leads out of runs" in sweeps[name]["error"]
        assert ask(server, f"/runs/{name}")[0] == 404
    everything = ask(server, "/api/runs")[2]
    assert b"SECRET" not in everything
    assert str(folder.parent).encode() not in everything
    outside = (
        "..",
        "../elsewhere",
        "..%2felsewhere",
        "%2e%2e%2felsewhere",
        quote(str(folder.parent / "elsewhere"), ""),
    )
    for name in outside:
        status, _, body = ask(server, f"/runs/{name}")
        assert status == 404
        assert b"SECRET" not in body


def test_a_report_runs_its_own_script_and_no_other(server: Any) -> None:
    status, headers, page = ask(server, "/runs/done")
    assert status == 200
    assert b'<script type="application/json" id="report">' in page
    scripts = headers["content-security-policy"].split("script-src ")[1].split(";")[0]
    assert scripts.startswith("'sha256-")
    assert " " not in scripts


def test_reports_are_read_again_only_when_a_record_came(tmp_path: Path, write_sweep: Any) -> None:
    sweep = write_sweep(tmp_path / "s", seeds=1)
    record = next((sweep / "ledger").iterdir())
    content = record.read_bytes()
    record.unlink()
    runs = Runs(tmp_path / "s")
    before = runs.listing()["sweeps"][0]
    assert before["progress"]["missing"] == 1
    first = runs.report("s")
    assert runs.report("s") is first
    assert runs.listing()["sweeps"][0]["version"] == before["version"]
    record.write_bytes(content)
    assert runs.listing()["sweeps"][0]["progress"]["missing"] == 0
    assert runs.listing()["sweeps"][0]["version"] != before["version"]
    assert runs.report("s") != first
    assert Runs(tmp_path / "not there yet").listing()["sweeps"] == []


def test_sweeps_further_down_are_found_by_their_place(tmp_path: Path, write_sweep: Any) -> None:
    write_sweep(tmp_path / "quickstart" / "tune" / "1-lr", seeds=1, title="First scan")
    write_sweep(tmp_path / "quickstart" / "transfer", seeds=1)
    write_sweep(tmp_path / ".hidden", seeds=1)
    runs = Runs(tmp_path)
    assert [sweep["name"] for sweep in runs.listing()["sweeps"]] == ["quickstart/transfer", "quickstart/tune/1-lr"]
    assert b"First scan" in runs.report("quickstart/tune/1-lr")


def test_it_survives_malformed_requests_and_a_crowd(server: Any, load: ModuleType) -> None:
    statuses = asyncio.run(load.attack(server, 400, seed=7))
    assert statuses.total() == 400
    assert not [status for status in statuses if status >= 500]
    assert {200, 400, 403, 404, 405, 413, 414} <= set(statuses)
    assert len(asyncio.run(load.crowd(server, 60, 2))) == 120


def test_command_line_mistakes(server: Any, tmp_path: Path) -> None:
    def web(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "complete_mue", "web", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    taken = web(str(tmp_path), "--port", str(server.port))
    assert taken.returncode == 2
    assert taken.stderr.startswith(f"mue: error: cannot listen on 127.0.0.1, port {server.port}")
    (tmp_path / "file").write_text("")
    assert "folder of a sweep" in web(str(tmp_path / "file")).stderr
    missing = web(str(tmp_path / "missing"), "--port", str(server.port))
    assert missing.stderr.startswith(f"warning: {tmp_path / 'missing'}: no such folder")


def test_the_page_offers_every_rule_set(server: Any) -> None:
    from complete_mue.rules import CATALOG

    page = ask(server, "/")[2].decode()
    assert all(f"<option>{name}</option>" in page for name in CATALOG)


@pytest.mark.parametrize("name", ["torchtitan", "megatron", "deepspeed", "hf", "json", "csv", "python", "target"])
def test_texts_come_as_files(server: Any, load: ModuleType, name: str) -> None:
    status, headers, body = ask(server, f"/api/text/{name}?{urlencode(load.PLAN)}")
    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    saved = re.fullmatch(r'attachment; filename="([a-z_]+\.[a-z]+)"', headers["content-disposition"])
    assert saved is not None
    if saved[1].endswith(".py"):
        compile(body, saved[1], "exec")
    elif saved[1].endswith(".json"):
        json.loads(body)


@pytest.mark.parametrize(
    ("target", "field"),
    [
        ("text/nothing?", None),
        ("text/megatron?r.width=no&", "r.width"),
        ("plot?axis=depth&", "axis"),
        ("plot?role=foo&", "role"),
        ("plot?a=1&", None),
    ],
)
def test_texts_and_plots_that_are_not_there_are_answered_in_words(
    server: Any, load: ModuleType, target: str, field: str | None
) -> None:
    plan = {name: value for name, value in load.PLAN.items() if f"{name}=" not in target}
    status, _, body = ask(server, f"/api/{target}{urlencode(plan)}")
    answer = json.loads(body)
    assert status == 200
    assert answer["error"]
    assert answer["field"] == field


def test_a_plot_is_two_pictures(server: Any, load: ModuleType) -> None:
    answer = json.loads(ask(server, f"/api/plot?{urlencode({**load.PLAN, 'axis': 'sparsity', 'compare': 'sp'})}")[2])
    assert answer["rules"][-1] == ["sp"]
    assert all(answer[column].count("<polyline") == 2 for column in ("lr", "init_std"))


def test_what_a_tool_cannot_express_is_said_and_nothing_is_saved(server: Any, load: ModuleType) -> None:
    change = {"t.feed_forward": "32e2a@512+16e1a@256", "t.expert_width": ""}
    _, headers, body = ask(server, f"/api/text/megatron?{urlencode({**load.PLAN, **change})}")
    assert "content-disposition" not in headers
    assert "megatron" in json.loads(body)["error"].lower()
