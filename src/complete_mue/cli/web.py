"""`mue web`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from complete_mue.cli.app import app, warn
from complete_mue.errors import FileError, MueError

_DEFAULT = Path("runs")


@app.command("web")
def web_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of one sweep, or of several, to show.")
    ] = _DEFAULT,
    host: Annotated[
        str, typer.Option(help="Address to listen on. The default is reachable from this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free port.")] = 8128,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Plan in the browser, and watch sweeps as they run.

    Type a reference and a target. You see the table, the reason for each number, the folded groups and a picture of
    the block. Copy it as TOML or Python, or share the address. Reports of DIR update while a sweep runs.

    Example:  mue web runs --open
    """
    try:
        from complete_mue.web.server import serve
    except ModuleNotFoundError as problem:
        if problem.name not in ("anyio", "starlette", "uvicorn"):
            raise
        raise MueError(f"mue web needs {problem.name}: install it with `pip install 'complete-mue[web]'`") from None
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder}: a file; give the folder of a sweep, or one with several sweeps in it")
    if not folder.exists() and folder != _DEFAULT:
        warn(f"{folder}: no such folder yet; its sweeps are shown once it exists")

    def listening(url: str) -> None:
        print(f"Planner at {url}  (Ctrl-C to stop)", flush=True)
        if open_:
            import webbrowser

            webbrowser.open(url)

    with suppress(KeyboardInterrupt):
        serve(folder, host, port, listening)
