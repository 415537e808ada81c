"""Looks into a program's source without running it: is it there, is it Python, is the name bound?

So a mistyped name costs no seconds of starting Spark.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import symtable
import sys
import tokenize
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from everflow.errors import TopologyError

FORM = "write it as module:name, e.g. flights:builder for the variable `builder` in flights.py"
_BINDS_UNSEEN = frozenset({"globals", "exec", "eval", "vars", "setattr", "__getattr__"})
"""Who uses one of these may bind names that are nowhere in the source."""
_NAMES_SHOWN = 10


def require_name(module: str, path: str) -> None:
    """TopologyError where there is no such module, its source is no Python, or it does not bind the
    first name of ``path``.

    What cannot be told without running it passes: a module without source, or one that binds names
    by star imports and the like.
    """
    if module in sys.modules or not (found := _source_of(module)):
        return
    text = _read(found)
    try:
        tree = ast.parse(text, found)
        compile(tree, found, "exec", dont_inherit=True)
    except SyntaxError as error:
        where = f"{error.filename}:{error.lineno}"
        raise TopologyError(
            f"module {module} is no Python: {error.msg}", where=where, code="EF-PROGRAM"
        ) from None
    except ValueError as error:  # a NUL
        raise TopologyError(
            f"module {module} is no Python: {error}", where=str(found), code="EF-PROGRAM"
        ) from None
    if any(_binds_unseen(node) for node in ast.walk(tree)):
        return
    bound = set(_bound(symtable.symtable(text, str(found), "exec")))
    if path.split(".")[0] not in bound:
        offered = [name for name in _offered(tree) if not name.startswith("_")]
        raise no_such_name(module, path, offered)


def no_such_module(missing: str, asked: str) -> TopologyError:
    """The error for a module that is not found; ``missing`` is it, or the package it should be
    in."""
    here = Path.cwd()
    hint = f"\n  {FORM}" if asked.endswith(".py") or "/" in asked else ""
    there = sorted(path.stem for path in here.glob("*.py") if path.stem.isidentifier())
    if not hint and there:
        hint = f"; the modules here are: {_listed(missing, there)}"
    return TopologyError(
        f"no module {missing!r} in {here} or among the installed packages{hint}", code="EF-PROGRAM"
    )


def no_such_name(module: str, path: str, known: Sequence[str]) -> TopologyError:
    """The error for a name that a module does not have; ``known`` could have been meant."""
    hint = f"; it has: {_listed(path, known)}" if known else "; it holds no topology at all"
    return TopologyError(f"module {module} has no {path!r}{hint}", code="EF-PROGRAM")


def _listed(wanted: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(wanted, known, n=1)
    listed = ", ".join(known[:_NAMES_SHOWN]) + (" ..." if len(known) > _NAMES_SHOWN else "")
    return f"{listed}. Did you mean {near[0]!r}?" if near else listed


def _source_of(module: str) -> Path | None:
    """The module's source; None where it has none that can be read, or its package must say where
    it is."""
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        raise no_such_module(module, module)
    try:
        spec: ModuleSpec | None = importlib.util.find_spec(parts[0])
    except (ValueError, ImportError):
        return None
    if spec is None:
        raise no_such_module(parts[0], module)
    for count in range(2, len(parts) + 1):
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(".".join(parts[:count]), list(spec.submodule_search_locations))
    origin = (
        None if spec is None or not spec.has_location or spec.origin is None else Path(spec.origin)
    )
    return origin if origin is not None and origin.suffix == ".py" and origin.is_file() else None


def _read(path: Path) -> str:
    try:
        with tokenize.open(path) as source:
            return source.read()
    except (SyntaxError, UnicodeDecodeError, OSError) as error:
        raise TopologyError(f"{path} cannot be read: {error}", code="EF-PROGRAM") from None


def _binds_unseen(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return any(alias.name == "*" for alias in node.names)
    if isinstance(node, ast.FunctionDef | ast.Name):
        return (node.name if isinstance(node, ast.FunctionDef) else node.id) in _BINDS_UNSEEN
    return False


def _bound(table: symtable.SymbolTable, outermost: bool = True) -> Iterator[str]:
    """Names that the module binds, also from functions that declare them global."""
    for symbol in table.get_symbols():
        set_here = symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
        if set_here and (outermost or symbol.is_declared_global()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _bound(child, outermost=False)


def _offered(tree: ast.Module) -> list[str]:
    """Variables that hold a call's result, and functions: one of them is probably meant."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.value, ast.Call)
            and isinstance(node.target, ast.Name)
        ):
            names.add(node.target.id)
    return sorted(names)
