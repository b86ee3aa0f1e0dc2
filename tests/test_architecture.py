"""The shape of the house, read off the imports: theory below, practice above, no circles."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "complete_mue"

# The library is what people import into their own training; the lab shows that it works; cli and web stand over both.
LIBRARY = ("layout", "rules", "plan", "apply", "export")
LAB = ("records", "kernels", "nn", "models", "data", "train", "recipes", "report", "sweep", "evals", "bench")

# Each package may import the packages named here and itself; `errors`, `storage` and `tabular` are open to all.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "storage": set(),
    "tabular": set(),
    "chart": set(),
    "chart_svg": set(),
    "layout": set(),
    "rules": {"layout"},
    "plan": {"layout", "rules"},
    "apply": {"layout", "rules", "plan"},
    "export": {"layout", "rules", "plan"},
    "lab": set(),
    "lab.records": set(),
    "lab.paper_figures": {"layout"},
    "lab.kernels": set(),
    "lab.nn": {"layout", "lab.kernels"},
    "lab.models": {"layout", "rules", "plan", "apply", "lab.kernels", "lab.nn"},
    "lab.data": {"layout", "lab.records"},
    "lab.train": {"layout", "rules", "plan", "apply", "lab.kernels", "lab.nn", "lab.models", "lab.data"},
    "lab.recipes": {"layout", "lab.train"},
    "lab.report": {"lab.records", "lab.paper_figures"},
    "lab.sweep": {
        "layout", "rules", "plan", "apply", "lab.nn", "lab.models", "lab.data", "lab.train", "lab.recipes",
        "lab.records", "lab.report", "lab.paper_figures",
    },
    "lab.evals": {"layout", "lab.nn", "lab.data", "lab.train", "lab.report"},
    "lab.bench": {
        "layout", "lab.kernels", "lab.nn", "lab.train", "lab.recipes", "lab.records", "lab.report", "lab.sweep",
    },
    "web": {"layout", "rules", "plan", "export", "lab.records", "lab.report"},
    "cli": {*LIBRARY, *(f"lab.{name}" for name in LAB), "lab.paper_figures", "web", "__init__"},
    "__init__": {"layout", "rules", "plan", "apply"},
    "__main__": {"cli"},
}  # fmt: skip
OPEN = {"errors", "storage", "tabular", "chart", "chart_svg"}  # to all
THEORY = {*OPEN, "layout", "rules", "plan", "export", "__init__"}


@cache
def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in SOURCE.rglob("*.py")
    }


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """Every imported module, with whether the import runs when the module loads."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    deferred = {
        id(node)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(outer, ast.If) and "TYPE_CHECKING" in ast.unparse(outer.test))
        for node in ast.walk(outer)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) not in deferred) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            assert node.module is not None
            found += [(f"{node.module}.{alias.name}", id(node) not in deferred) for alias in node.names]
    return found


def own(name: str) -> str | None:
    """The module of ours that an import names, if any."""
    known = modules()
    parts = name.split(".")
    if parts[0] != "complete_mue":
        return None
    for length in range(len(parts), 1, -1):
        if ".".join(parts[1:length]) in known:
            return ".".join(parts[1:length])
    return "__init__"


def package(name: str) -> str:
    """`plan` of `plan.row`, `lab.sweep` of `lab.sweep.run`."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "lab" else parts[0]


def test_the_house_is_library_and_lab() -> None:
    folders = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    assert folders == {*LIBRARY, "lab", "cli", "web"}
    assert {path.name for path in (SOURCE / "lab").iterdir() if (path / "__init__.py").exists()} == set(LAB)


def test_packages_import_only_what_stands_below() -> None:
    for name, path in modules().items():
        room = package(name)
        assert room in ALLOWED, f"{name}: new here; give it a place in ALLOWED"
        for imported, _ in imports(path):
            target = own(imported)
            if target is None:
                continue
            assert package(target) in ALLOWED[room] | {room, *OPEN}, f"{name} imports {imported}: that points up"


def test_theory_never_imports_torch() -> None:
    for name, path in modules().items():
        if name.split(".")[0] in THEORY:
            heavy = [i for i, _ in imports(path) if i.split(".")[0] in ("torch", "numpy", "triton")]
            assert not heavy, f"{name} imports {heavy}"


def test_no_circles() -> None:
    graph = {
        name: {t for imported, at_load in imports(path) if at_load and (t := own(imported)) and t != name}
        for name, path in modules().items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"import circle: {' -> '.join((*trail[trail.index(name) :], name))}"
        if name not in done:
            for target in graph.get(name, ()):
                visit(target, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_the_picture_shows_every_package() -> None:
    drawn = ElementTree.parse(ROOT / "docs/architecture.svg").iterfind(".//{*}text[@class='name']")
    assert {text.text for text in drawn} == {*LIBRARY, *LAB, "cli", "web"}


def test_the_page_names_modules_that_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z_/]+\.py)`", text)
    assert len(named) > 10
    assert [name for name in named if not (SOURCE / name).exists() and not (ROOT / name).exists()] == []
