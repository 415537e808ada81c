"""``module:name`` or ``file.py:name`` -> the user's topology.

Most faults of a program are found in its source: a mistyped name costs no start of Spark.
"""

from __future__ import annotations

import ast
import difflib
import glob
import importlib
import importlib.util
import symtable
import sys
import tokenize
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from everflow.console.status import StatusLine
from everflow.errors import EverflowError, TopologyError
from everflow.hidden_modules import blamed, library
from everflow.retry import shown_by
from everflow.serdes.base import SerdeError
from everflow.spark.session import get_context, start_when_asked, started_by
from everflow.topology.program import Topology

LOAD_SILENT_S = 2.0
"""A program may take so long to load without a word."""
FORM = (
    "write it as module:name, e.g. flights:builder for the variable `builder` in flights.py; or "
    "with the file, e.g. jobs/my-flights.py:builder"
)
_BINDS_UNSEEN = frozenset({"globals", "exec", "eval", "vars", "setattr", "__getattr__"})
"""Who uses one of these may bind names that are nowhere in the source."""
_NAMES_SHOWN = 10


def _wrong(text: str, where: str | None = None) -> TopologyError:
    return TopologyError(text, where=where, code="EF-PROGRAM")


def load_topology(target: str, *, start_spark: Callable[[], object]) -> Topology:
    """Import the module of ``target`` (`module_and_name`). Its name is a `Topology`, a
    `StreamsBuilder`, or a function without arguments that returns one of them. ``start_spark`` runs
    when the program makes its first Column, if it makes one.

    Raises TopologyError for no such module or name, the wrong kind of object, or a module that
    fails (with file and line of the failing statement), and EverflowErrors of the module.
    """
    put_current_folder_on_path()
    module_name, name = module_and_name(target)
    require_name(module_name, name)
    with started_by(start_spark):
        start_when_asked()
        with _of_users(f"module {module_name}", module_name):
            module = importlib.import_module(module_name)
        found = _attribute(module, name)
        if callable(found) and not isinstance(found, type) and not hasattr(found, "build"):
            with _of_users(f"{target}()"):
                found = found()
        return _as_topology(found, target)


@contextmanager
def loaded(target: str, status: StatusLine) -> Iterator[Topology]:
    """`load_topology`; ``status`` shows it, and the waits of the block, if they last."""
    lasting = partial(status.waiting, after_s=LOAD_SILENT_S)
    with shown_by(lasting):
        with lasting(f"loading {target}"):
            topology = load_topology(target, start_spark=get_context)
        yield topology


def place_of(target: str) -> str:
    """``flights.py (/programs/flights.py), builder``: where a program was loaded from."""
    module, name = module_and_name(target)
    file = getattr(sys.modules.get(module), "__file__", None)
    return f"{module}, {name}" if file is None else f"{Path(file).name} ({file}), {name}"


def put_current_folder_on_path() -> None:
    """Put the current folder on Python's path, which Spark's workers get, too. Idempotent."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)


@contextmanager
def _of_users(what: str, module: str = "") -> Iterator[None]:
    """What fails in the block, the import of ``module`` or a call, names the program's line."""
    try:
        yield
    except EverflowError as error:
        raise _placed(error) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit(), too, is no way to give a topology
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module}.".startswith(f"{missing}."):
            raise no_such_module(missing, module) from error
        raise _failed(what, error) from error


def _attribute(module: ModuleType, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            place = next(iter(getattr(module, "__path__", ())), None)
            place = getattr(module, "__file__", None) or place or ""
            raise no_such_name(module.__name__, path, _candidates(module), place) from None
    return found


def _as_topology(found: Any, target: str) -> Topology:
    if isinstance(found, Topology):
        return found
    build = getattr(found, "build", None)
    built = build() if callable(build) and not isinstance(found, type) else None
    if isinstance(built, Topology):
        return built
    raise _wrong(
        f"{target} is of type {type(found).__name__}, not a StreamsBuilder, a Topology or a "
        f"function that returns one"
    )


def _candidates(module: ModuleType) -> list[str]:
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, type)
        and (isinstance(value, Topology) or hasattr(value, "build"))
    )


def _placed(error: EverflowError) -> EverflowError:
    """Serdes and windows do not know the user's line (the DSL does): add it to what they refuse."""
    if isinstance(error, TopologyError) and error.where is not None:
        return error
    if isinstance(error, TopologyError | SerdeError):
        return TopologyError(str(error), where=_place(error), code=error.code)
    return error


def _place(error: BaseException) -> str:
    """``file:line`` of the innermost frame of the user's program."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_users(frame.filename)]
    last = (own or frames)[-1]
    return f"{last.filename}:{last.lineno}"


def _failed(what: str, error: BaseException) -> TopologyError:
    where = _place(error)
    if isinstance(error, SyntaxError) and error.filename is not None:
        where = f"{error.filename}:{error.lineno}"
    hiding = "".join(f". {one}: rename it" for one in blamed(error))
    return _wrong(f"{what} failed: {type(error).__name__}: {error}{hiding}", where)


def _is_users(filename: str) -> bool:
    ours = str(Path(__file__).parents[1])
    return not (
        filename.startswith(("<", ours))
        or "site-packages" in filename
        or "dist-packages" in filename
    )


def module_and_name(target: str) -> tuple[str, str]:
    """The two parts of ``module:name``, or of ``folder/file.py:name``: the file's folder is then
    put first on the path, as Python does for a script. The current folder is on the path.
    TopologyError, with what to do, for what names no topology that can be imported."""
    first, separator, name = target.rpartition(":")
    asked = first if separator else target
    file = Path(asked)
    if not asked or _is_module(asked):
        if not (first and name):
            raise _wrong(f"{target!r} does not name a topology: {FORM}")
        return first, name
    if file.suffix != ".py" or not file.is_file():
        raise _no_program_file(file)
    if not (first and name):
        names = [one for one in _offered(_parsed(file.stem, file)) if not one.startswith("_")]
        named = f"; it has: {', '.join(names[:_NAMES_SHOWN])}" if names else ""
        raise _wrong(
            f"{target!r} does not say which topology of the file: write {asked}:NAME{named}"
        )
    if "." in file.stem:
        raise _wrong(
            f"{file} cannot be imported: Python takes the dot in its name for that of a package. "
            f"Rename the file, e.g. {file.stem.replace('.', '_')}.py"
        )
    folder = str(file.resolve().parent)
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    return file.stem, name


def _is_module(asked: str) -> bool:
    """True for the name of a module. ``jobs.py`` is a file, and so is a path that exists."""
    path = Path(asked)
    named_as_file = "/" in asked or path.suffix in (".py", ".ipynb")
    return not (named_as_file or (path.is_file() and not Path(f"{asked}.py").exists()))


def _no_program_file(file: Path) -> TopologyError:
    if file.is_dir():
        inside = sorted(path.name for path in file.glob("*.py"))
        listed = f"; it holds: {', '.join(inside[:_NAMES_SHOWN])}" if inside else ""
        said = f"{file} is a folder, not a Python file; write {file}/FILE.py:NAME{listed}"
    elif not file.exists():
        near = sorted(path.name for path in file.parent.glob("*.py"))
        listed = f"; the Python files there are: {_listed(file.name, near)}" if near else ""
        said = f"there is no file {file} in {Path.cwd()}{listed}; {FORM}"
    elif file.suffix == ".ipynb":
        said = (
            f"{file} is a notebook. Run it where it is, with KafkaStreams(...).run() in a cell; or "
            f"write its program as a Python file (jupyter nbconvert --to script {file})"
        )
    else:
        said = (
            f"{file} is not called as a Python file. Rename it to {file.with_suffix('.py')} and "
            f"write {file.with_suffix('.py')}:NAME"
        )
    return _wrong(said)


def require_name(module: str, path: str) -> None:
    """TopologyError where there is no such module, a file of the program has a library's name, its
    source is no Python, or it does not bind the first name of ``path``. What the source does not
    show passes."""
    _require_own_name(module, path)
    if module in sys.modules or not (found := _source_of(module)):
        return
    tree = _parsed(module, found)
    if any(_binds_unseen(node) for node in ast.walk(tree)):
        return
    bound = set(_bound(symtable.symtable(_read(found), str(found), "exec")))
    if path.split(".")[0] not in bound:
        offered = [name for name in _offered(tree) if not name.startswith("_")]
        raise no_such_name(module, path, offered, str(found))


def _require_own_name(module: str, path: str) -> None:
    """TopologyError where a file or folder of the program is called as a library: one of the two
    cannot be imported."""
    top, *rest = module.split(".")
    here = [Path(sys.path[0] if sys.path else "").resolve(), Path.cwd()]
    mine = next((own for folder in here if (own := _own(folder, top, rest)) is not None), None)
    if mine is None:
        return
    what = library(top, here)
    loaded = getattr(sys.modules.get(top), "__file__", None)
    if loaded is not None:
        if Path(loaded).resolve() in (mine, mine / "__init__.py"):
            return
        what = what or f"the module {top} that is loaded already ({loaded})"
    if what is None:
        return
    kind, name = ("folder", f"my_{top}") if mine.is_dir() else ("file", f"my_{top}.py")
    raise _wrong(
        f"{mine} has the name of {what}, and Python imports only one of the two. Rename the "
        f"{kind}, e.g. {name}, and write {'.'.join([f'my_{top}', *rest])}:{path}"
    )


def _own(folder: Path, top: str, rest: Sequence[str]) -> Path | None:
    """The program's file or folder that is asked for as the module ``top`` with ``rest`` in it."""
    if (package := folder / top).is_dir():
        inside = package.joinpath(*rest) if rest else package
        if (package / "__init__.py").exists() or (
            rest and (inside.is_dir() or inside.with_suffix(".py").exists())
        ):
            return package
    file = folder / f"{top}.py"
    return file if file.exists() else None


def _parsed(module: str, found: Path) -> ast.Module:
    text = _read(found)
    try:
        tree = ast.parse(text, found)
        compile(tree, found, "exec", dont_inherit=True)
    except SyntaxError as error:
        where = f"{error.filename}:{error.lineno}"
        raise _wrong(f"module {module} is no Python: {error.msg}", where) from None
    except ValueError as error:  # a NUL
        raise _wrong(f"module {module} is no Python: {error}", str(found)) from None
    return tree


def no_such_module(missing: str, asked: str) -> TopologyError:
    """The error for a module that is not found; ``missing`` is it, or the package around it."""
    here = Path.cwd()
    there = sorted(path.stem for path in here.glob("*.py") if "." not in path.stem)
    hint = f"; the modules here are: {_listed(missing, there)}" if there else ""
    # A file without the suffix, or with another one, that people take for the program.
    others = sorted(path for path in here.glob(f"{glob.escape(asked)}.*") if path.suffix != ".py")
    if others:
        hint = f"; {_no_program_file(others[0].relative_to(here))}"
    return _wrong(f"no module {missing!r} in {here} or among the installed packages{hint}")


def no_such_name(module: str, path: str, known: Sequence[str], place: str) -> TopologyError:
    """``known``: names that may be meant; ``place``: of the module, empty if it has none."""
    hint = f"; it has: {_listed(path, known)}" if known else "; it holds no topology at all"
    if Path(place).is_dir():
        hint = f"; it is a folder: {_no_program_file(Path(place))}"
    at = f" ({place})" if place else ""
    return _wrong(f"module {module}{at} has no {path!r}{hint}")


def _listed(wanted: str, known: Sequence[str]) -> str:
    # Without the ending that all files have: `old.py` is not near to `feed.py`.
    files = {one.removesuffix(".py"): one for one in known}
    near = difflib.get_close_matches(wanted.removesuffix(".py"), files, n=1)
    listed = ", ".join(known[:_NAMES_SHOWN]) + (" ..." if len(known) > _NAMES_SHOWN else "")
    return f"{listed}. Did you mean {files[near[0]]!r}?" if near else listed


def _source_of(module: str) -> Path | None:
    """The module's source; None where none can be read, or its package must say where it is."""
    parts = module.split(".")
    if not all(parts):
        raise no_such_module(module, module)
    try:
        spec: ModuleSpec | None = importlib.util.find_spec(parts[0])
    except (ValueError, ImportError):
        return None
    if spec is None:
        raise no_such_module(parts[0], module)
    for part in parts[1:]:
        if spec is None or spec.submodule_search_locations is None:
            return None
        # by its own name: Python looks for a folder without __init__.py among imported packages
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    origin = (
        None if spec is None or not spec.has_location or spec.origin is None else Path(spec.origin)
    )
    return origin if origin is not None and origin.suffix == ".py" and origin.is_file() else None


def _read(path: Path) -> str:
    try:
        with tokenize.open(path) as source:
            return source.read()
    except (SyntaxError, UnicodeDecodeError, OSError) as error:
        raise _wrong(f"{path} cannot be read: {error}") from None


def _binds_unseen(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return any(alias.name == "*" for alias in node.names)
    if isinstance(node, ast.FunctionDef | ast.Name):
        return (node.name if isinstance(node, ast.FunctionDef) else node.id) in _BINDS_UNSEEN
    return False


def _bound(table: symtable.SymbolTable, outermost: bool = True) -> Iterator[str]:
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


def write_stores(target: str, application_id: str, optimization: str, file: str) -> int:
    """For `snapshots.state_source`: a program's stores, packed, into ``file``; the exit code."""
    from everflow.snapshots.logged_stores import logged_stores
    from everflow.travel.pickled_objects import PickledObjects

    try:
        topology = load_topology(target, start_spark=get_context)
        stores = logged_stores(topology, application_id, optimization)
        Path(file).write_bytes(PickledObjects.of(stores).data)
    except EverflowError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(write_stores(*sys.argv[1:]))
