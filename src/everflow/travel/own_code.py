"""Says whether a module belongs to the user's program.

A program's module has a file that is neither of the standard library, nor of an installed
distribution, nor of everflow or Spark; or it has no file at all (a notebook, a console). An
editable install is the program's: its files are where they are worked on.
An installed module that holds a topology in a variable is a program, too: importing it would build
the topology.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path, PurePath
from types import ModuleType

INSTALLED_FOLDERS = frozenset({"site-packages", "dist-packages"})
ENGINE = frozenset({"everflow", "pyspark", "py4j"})
MAIN = frozenset({"__main__", "__mp_main__"})
TOPOLOGY_TYPES = frozenset(
    {
        "everflow.dsl.streams_builder.StreamsBuilder",
        "everflow.dsl.streams.KStream",
        "everflow.dsl.streams.KTable",
        "everflow.topology.program.Topology",
        "everflow.instance.kafka_streams.KafkaStreams",
    }
)


def belongs(
    name: str,
    files: Sequence[str],
    library: frozenset[str],
    recorded: Callable[[str, str], bool],
    holds_topology: bool = False,
) -> bool:
    """True if the module is the user's. ``files``: its file, or a namespace package's folders;
    none: made here or built in. ``library``: the standard library's folders. ``recorded(file,
    top)``: a distribution outside of site-packages (``pip install --target``) lists it.
    ``holds_topology``: one of its variables is a builder, a stream, a table or a topology."""
    top = name.partition(".")[0]
    if name in MAIN:
        return True
    if top in ENGINE:
        return False
    if not files:
        return top not in sys.stdlib_module_names and top not in sys.builtin_module_names
    if any(file.endswith(tuple(EXTENSION_SUFFIXES)) for file in files):
        return False  # machine code has no other way than its import
    if holds_topology:
        return True
    return not any(_is_installed(file, top, library, recorded) for file in files)


def _is_installed(
    file: str, top: str, library: frozenset[str], recorded: Callable[[str, str], bool]
) -> bool:
    path = PurePath(file)
    if INSTALLED_FOLDERS & set(path.parts):
        return True
    # Folders of the library hold site-packages, but one above them, such as /usr, is nobody's.
    return any(str(parent) in library for parent in path.parents) or recorded(file, top)


def is_own(module: ModuleType) -> bool:
    name, file = module.__name__, getattr(module, "__file__", None)
    folders = (str(folder) for folder in getattr(module, "__path__", ()))
    files = (file,) if isinstance(file, str) else tuple(folders)
    has_topology = name.partition(".")[0] not in ENGINE and any(
        called(type(value), TOPOLOGY_TYPES) for value in tuple(vars(module).values())
    )
    return belongs(name, files, _library(), _recorded, has_topology)


def program_folders(path: Iterable[str]) -> list[str]:
    """The program's entries of a Python path: neither the library's, nor of installed packages."""
    return [
        entry
        for entry in path
        if not _is_installed(str(PurePath(entry, "any.py")), "", _library(), _holds_packages)
    ]


def called(cls: type, names: frozenset[str]) -> bool:
    """True if the class or one of its bases is called so; by name, so that nothing is imported."""
    return any(f"{base.__module__}.{base.__qualname__}" in names for base in cls.__mro__)


@lru_cache(maxsize=1)
def _library() -> frozenset[str]:
    paths = sysconfig.get_paths()
    return frozenset(paths[name] for name in ("stdlib", "platstdlib"))


def _holds_packages(file: str, _: str) -> bool:
    folder = Path(file).parent
    engine = folder.name.startswith("py4j-") or any((folder / name).is_dir() for name in ENGINE)
    return engine or next(folder.glob("*.dist-info"), None) is not None


def _recorded(file: str, top: str) -> bool:
    folder = next(
        (parent for parent in PurePath(file).parents if parent.name == top), PurePath(file)
    ).parent
    return top in _recorded_in(str(folder))


@lru_cache(maxsize=64)
def _recorded_in(folder: str) -> frozenset[str]:
    """Top-level names of the distributions that are installed in ``folder``."""
    found = set()
    for record in Path(folder).glob("*.dist-info/RECORD"):
        for line in record.read_text(errors="replace").splitlines():
            found.add(line.split(",")[0].split("/")[0].removesuffix(".py"))
    return frozenset(found)
