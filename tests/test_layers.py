"""The package is a tower: each floor imports only from itself and from floors below, and no import closes a circle."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "sonoran"

FLOORS = (
    "errors",
    "types",
    "config",
    "theory",
    "sampling",
    "models",
    "backends",
    "engine",
    "ssd",
    "planning",
    "worker",
    "drafting",
    "assemble",
    "auto",
    "llm",
    "vllm",
    "transformers",
    "server",
    "serve_ray",
    "bench",
    "cli",
)
"""From the ground up. A new room gets its floor here."""


def module_name(path: Path) -> str:
    parts = ("sonoran", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCE.rglob("*.py")}


def imports(path: Path) -> set[str]:
    """Return the modules of the package that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative imports hide where they lead"
            module = str(node.module)
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                found.add(inner if inner in MODULES or inner == "sonoran._native" else module)
    return {name for name in found if name in MODULES}


IMPORTS = {name: imports(path) for name, path in MODULES.items()}


def floor(module: str) -> int:
    room = module.split(".")[1]
    assert room in FLOORS, f"{module}: give the room a floor in FLOORS"
    return FLOORS.index(room)


@pytest.mark.parametrize("module", sorted(name for name in MODULES if name != "sonoran"))
def test_nothing_is_imported_from_above(module: str) -> None:
    assert [other for other in IMPORTS[module] if other != "sonoran" and floor(other) > floor(module)] == []


def test_no_imports_close_a_circle() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"circle: {' -> '.join((*path, module))}"
        if module not in done:
            for other in IMPORTS[module]:
                if other != "sonoran":  # its face loads lazily
                    visit(other, (*path, module))
            done.add(module)

    for module in MODULES:
        if module != "sonoran":
            visit(module, ())


def test_only_the_guest_in_vllm_knows_of_it() -> None:
    """And it asks for vLLM when it is used, not when it is imported."""
    foreign = {}
    for name, path in MODULES.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(found.split(".")[0] == "vllm" for found in names):
                foreign[name] = node in tree.body
    assert {name for name in foreign if not name.startswith("sonoran.vllm.")} == set()
    assert [name for name, at_once in foreign.items() if at_once] == []


def test_only_backends_knows_which_backends_there_are() -> None:
    """Elsewhere a backend is what the protocol says: none is made by name, none is asked what it is."""
    outside = [path for name, path in MODULES.items() if not name.startswith("sonoran.backends")]
    assert [str(path) for path in outside if "NativeBackend" in path.read_text(encoding="utf-8")] == []
