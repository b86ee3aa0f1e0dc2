"""The shape of the house, read off the imports: theory below, practice above, no circles."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "complete_mue"

# Each package may import the packages named here and itself; `errors` and `storage` are open to all.
ALLOWED = {
    "errors": set(),
    "storage": set(),
    "layout": set(),
    "rules": {"layout"},
    "plan": {"layout", "rules"},
    "apply": {"layout", "rules", "plan"},
    "export": {"layout", "rules", "plan"},
    "kernels": set(),
    "nn": {"layout", "kernels"},
    "models": {"layout", "rules", "plan", "apply", "kernels", "nn"},
    "data": {"layout"},
    "train": {"layout", "rules", "plan", "apply", "kernels", "nn", "models", "data"},
    "report": set(),
    "bench": {"layout", "kernels", "nn", "train", "recipes", "sweep"},
    "recipes": {"layout", "train"},
    "sweep": {"layout", "plan", "apply", "nn", "models", "data", "train", "recipes", "report"},
    "evals": {"layout", "nn", "data", "train", "report"},
    "web": {"layout", "rules", "plan", "report"},
    "cli": {
        "web",
        "report",
        "evals",
        "layout",
        "rules",
        "plan",
        "apply",
        "export",
        "models",
        "bench",
        "data",
        "train",
        "recipes",
        "sweep",
        "__init__",
    },
    "__init__": {"layout", "rules", "plan", "apply"},
    "__main__": {"cli"},
}
THEORY = {"errors", "storage", "layout", "rules", "plan", "export", "__init__"}


@lru_cache(maxsize=1)
def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in SOURCE.rglob("*.py")
    }


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


def test_packages_import_only_what_stands_below() -> None:
    for name, path in modules().items():
        package = "cli" if name.endswith(".__main__") else name.split(".")[0]  # an entry point may start what it likes
        assert package in ALLOWED, f"{name}: new at the top level; give it a place in ALLOWED"
        for imported, _ in imports(path):
            target = own(imported)
            if target is None:
                continue
            below = target.split(".")[0]
            assert below in ALLOWED[package] | {package, "errors", "storage"}, (
                f"{name} imports {imported}: that points up"
            )


def test_theory_never_imports_torch() -> None:
    for name, path in modules().items():
        if name.split(".")[0] in THEORY:
            heavy = [i for i, _ in imports(path) if i.split(".")[0] in ("torch", "numpy", "triton", "matplotlib")]
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
