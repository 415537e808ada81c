"""The tests that `./run check` runs: those of what changed against main.

Changed is what differs from the commit where this branch left main, committed or not. Of it:

- a changed test file of `tests/unit` or of a tool (`bench/tests`, ...) is run;
- so is each of them that imports a changed module: itself, or through one module in between. Names
  of a package (`from everflow import KStream`) count as imports of the module that defines them.

Nearest first: changed tests, then direct imports, then those through one module, since the check
stops at its time.

.venv/bin/python tests/changed_tests.py
"""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BEGIN = ("src/", "simulation/", "demo/", "tests/", "examples/", "")
"""Where the names of modules begin, as on pytest's path."""
TOOLS = ("bench", "chaos", "deploy", "oracle", "soak")
FOLDERS = ("src", "simulation", "demo", "tests", *TOOLS, "examples")


def changed(root: Path) -> set[str]:
    """Paths, from the root, of files that differ from where HEAD left main, and of new ones.

    Without a main, or with HEAD on it: what is not committed yet.
    """
    main = next((one for one in ("main", "origin/main") if _git(root, "rev-parse", one)), "HEAD")
    base = _git(root, "merge-base", main, "HEAD") or ["HEAD"]
    new = _git(root, "ls-files", "--others", "--exclude-standard")
    return {*_git(root, "diff", "--name-only", "--no-renames", base[0]), *new}


def _git(root: Path, *arguments: str) -> list[str]:
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines() if done.returncode == 0 else []


def chosen(root: Path, touched: set[str]) -> list[str]:
    """Test files for the changed files ``touched``, nearest first."""
    modules = {_module(path): path for path in _python(root)}
    tests = sorted(path for path in modules.values() if is_test(path))
    imports = {path: _imports(root, path, modules) for path in modules.values()}
    direct = {path for path in tests if imports[path] & touched}
    near = {path for path in tests if any(imports[between] & touched for between in imports[path])}
    return [
        *(path for path in tests if path in touched),
        *(path for path in tests if path in direct - touched),
        *(path for path in tests if path in near - direct - touched),
    ]


def is_test(path: str) -> bool:
    """Whether a path is a test that needs no broker by its place: of a part, or of a tool."""
    place, _, name = path.rpartition("/")
    return name.startswith("test_") and (
        f"{place}/".startswith("tests/unit/") or place.endswith("/tests")
    )


def _python(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for name in FOLDERS for path in (root / name).rglob("*.py")]


def _module(path: str) -> str:
    begin = next(one for one in BEGIN if path.startswith(one))
    return path[len(begin) :].removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imports(root: Path, path: str, modules: Mapping[str, str]) -> frozenset[str]:
    """Paths of the modules that a file imports, anywhere in it."""

    def places(module: str, name: str, seen: frozenset[str]) -> Iterator[str]:
        if (below := f"{module}.{name}") in modules:
            yield modules[below]
        elif module in modules and module not in seen:
            home = modules[module]
            origin = _names(root, home).get(name) if home.endswith("__init__.py") else None
            yield from places(*origin, seen | {module}) if origin else (home,)

    found = set()
    for module, name in _imported(root, path):
        if name is None:
            found |= {modules[module]} if module in modules else set()
        else:
            found |= set(places(module, name, frozenset()))
    return frozenset(found - {path})


@cache
def _imported(root: Path, path: str) -> tuple[tuple[str, str | None], ...]:
    """(module, name) of each import in a file; None for `import module`."""
    found: list[tuple[str, str | None]] = []
    for node in ast.walk(ast.parse((root / path).read_text())):
        if isinstance(node, ast.Import):
            found += [(one.name, None) for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(node.module, one.name) for one in node.names]
    return tuple(found)


@cache
def _names(root: Path, path: str) -> dict[str, tuple[str, str]]:
    """Name -> (module, name there) of what a package's `__init__` imports from elsewhere."""
    return {
        one.asname or one.name: (node.module, one.name)
        for node in ast.walk(ast.parse((root / path).read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
        for one in node.names
    }


if __name__ == "__main__":
    files = chosen(ROOT, changed(ROOT))
    print(f"{len(files)} test files of what changed", file=sys.stderr)
    print("\n".join(files))
