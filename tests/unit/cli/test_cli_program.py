"""module:name -> topology, and what people read when it is wrong."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import packages_distributions
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from everflow.cli import program as programs
from everflow.cli.program import load_topology, place_of, put_current_folder_on_path, require_name
from everflow.console.status import StatusLine
from everflow.errors import TopologyError
from everflow.hidden_modules import library
from everflow.retry import waiting
from everflow.topology.program import Topology

PROGRAM = """
from everflow.topology.program import Topology

class Builder:
    def build(self):
        return Topology(())

topology = Topology(())
builder = Builder()
number = 5

def make():
    return builder

def broken():
    return 1 / 0
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of programs as the current one; its modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)
    (tmp_path / "program.py").write_text(PROGRAM)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


FILES = ["my-app.py", "1app.py", "my app.py", "class.py", "jobs/app.py", "jobs/my-app.py"]


@pytest.mark.parametrize("file", FILES)
def test_a_file_is_run_whatever_its_name_importable_or_not(folder: Path, file: str) -> None:
    (folder / "jobs").mkdir()
    (folder / "jobs" / "helper.py").write_text("number = 5\n")
    imports = "from helper import number\n" if "/" in file else ""
    (folder / file).write_text(imports + PROGRAM)
    assert load(f"{file}:topology") == load(f"{folder / file}:make") == Topology(())
    assert place_of(f"{file}:topology") == f"{Path(file).name} ({folder / file}), topology"
    with pytest.raises(TopologyError, match=r"has no 'bilder'") as caught:
        load(f"{file}:bilder")
    assert str(folder / file) in str(caught.value)


@pytest.mark.parametrize("name", ["my-app", "1app", "my app", "class"])
def test_a_module_is_run_whatever_its_name(folder: Path, name: str) -> None:
    (folder / f"{name}.py").write_text(PROGRAM)
    assert load(f"{name}:builder") == Topology(())


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("app.txt:topology", "Rename it to app.py and write app.py:NAME"),
        ("app:topology", "Rename it to app.py and write app.py:NAME"),
        ("bare:topology", "Rename it to bare.py and write bare.py:NAME"),
        ("book.ipynb:topology", "book.ipynb is a notebook"),
        ("book:topology", "book.ipynb is a notebook"),
        ("jobs:topology", "FILE.py:NAME; it holds: first.py, second.py"),
        ("jobs/:topology", "jobs is a folder"),
        ("jobs/fist.py:topology", "Did you mean 'first.py'?"),
        ("jobs/lost.py:topology", "are: first.py, second.py; "),  # the ending is no likeness
        ("jobs/first:topology", "Did you mean 'first.py'?"),
        ("absent/app.py:topology", "no file absent/app.py"),
        ("app.v2.py:topology", "Rename the file, e.g. app_v2.py"),
    ],
)
def test_a_file_that_is_none_is_told_with_what_to_do(folder: Path, target: str, words: str) -> None:
    (folder / "jobs").mkdir()
    for name in ("app.txt", "bare", "book.ipynb", "app.v2.py", "jobs/first.py", "jobs/second.py"):
        (folder / name).write_text(PROGRAM)
    with pytest.raises(TopologyError) as caught:
        load(target)
    assert words in str(caught.value)
    assert caught.value.code == "EF-PROGRAM"


LIBRARIES = sorted(
    name
    for name in (*packages_distributions(), "queue", "json", "socket", "sys", "secrets")
    if name.isidentifier() and name not in ("everflow", "__pycache__")
)


@pytest.mark.parametrize("target", ["{}:builder", "{}.py:builder"])
def test_a_file_with_the_name_of_a_library_is_told_with_places(folder: Path, target: str) -> None:
    path = [*sys.path]
    assert len(LIBRARIES) > 40
    for name in LIBRARIES:
        if library(name, [folder]) is None:
            continue  # data without code, or found by an editable install's own importer
        file = folder / f"{name}.py"
        file.write_text("import nothing_of_it_runs\nbuilder = None\n")
        with pytest.raises(TopologyError) as caught:
            load(target.format(name))
        assert f"{file} has the name" in str(caught.value), name
        assert f"my_{name}:builder" in str(caught.value)
        file.unlink()
        sys.path[:] = path


@pytest.mark.parametrize("name", ["json", "queue", "numpy", "rich"])
@pytest.mark.parametrize("inside", ["", ".jobs"])
def test_a_folder_with_the_name_of_a_library_is_told(folder: Path, name: str, inside: str) -> None:
    (folder / name).mkdir()
    (folder / name / f"{inside.strip('.') or '__init__'}.py").write_text("builder = None\n")
    with pytest.raises(TopologyError) as caught:
        load(f"{name}{inside}:builder")
    said = str(caught.value)
    assert f"{folder / name} has the name" in said
    assert "Rename the folder" in said
    assert f"write my_{name}{inside}:builder" in said


def test_a_folder_that_a_library_replaces_is_told_where_its_import_fails(folder: Path) -> None:
    (folder / "json").mkdir()
    (folder / "json" / "__init__.py").write_text("mine = 1\n")
    (folder / "uses.py").write_text("from json import mine\nbuilder = 1\n")
    with pytest.raises(TopologyError) as caught:
        load("uses:builder")
    assert re.search(f"{folder / 'json'} .* module json", str(caught.value))
    assert f"{folder / 'uses.py'}:1" in str(caught.value)


@pytest.mark.parametrize("target", ["test:builder", "test.py:builder"])
def test_a_program_may_be_called_test(folder: Path, target: str) -> None:
    """Python has tests of its own under that name, which no program imports."""
    (folder / "test.py").write_text(PROGRAM)
    load(target)


def test_a_name_that_a_library_does_not_have_is_told_with_the_place_of_the_library() -> None:
    with pytest.raises(TopologyError) as caught:
        load("orjson:builder")
    assert f"module orjson ({orjson.__file__}) has no 'builder'" in str(caught.value)


def test_a_helper_that_hides_a_package_is_told_where_its_import_fails(folder: Path) -> None:
    name = next(one for one in LIBRARIES if one not in sys.modules and library(one, [folder]))
    (folder / f"{name}.py").write_text("mine = 1\n")
    (folder / "uses.py").write_text(f"from {name} import what_the_package_has\nbuilder = 1\n")
    with pytest.raises(TopologyError) as caught:
        load("uses:builder")
    assert re.search(f"{folder / name}.py hides .* {name}", str(caught.value))


def test_a_second_file_of_a_name_that_is_loaded_is_not_taken_for_the_first(folder: Path) -> None:
    (folder / "jobs").mkdir()
    (folder / "jobs" / "program.py").write_text(PROGRAM)
    load("program:builder")
    with pytest.raises(TopologyError, match="module program"):
        load("jobs/program.py:builder")


def require(module: str, path: str) -> None:
    put_current_folder_on_path()
    require_name(module, path)


def unwanted() -> None:
    raise AssertionError("Spark was started")


def load(target: str) -> Topology:
    return load_topology(target, start_spark=unwanted)


@pytest.mark.parametrize("name", ["topology", "builder", "make"])
def test_topologies_builders_and_functions_are_accepted(name: str) -> None:
    assert load(f"program:{name}") == Topology(())


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("program", "write it as module:name"),
        ("program:", "write it as module:name"),
        ("absent:topology", "no module 'absent'"),
        ("program.py", "write program.py:NAME; it has: broken, builder, make, topology"),
        ("abs ent:topology", "no module 'abs ent'"),
        ("prog:builder", "are: program. Did you mean 'program'?"),
        ("program.inner:topology", "no module 'program.inner'"),
        ("program:absent", "it has: broken, builder, make, topology"),
        ("program:bulider", "Did you mean 'builder'?"),
        ("program:number", "type int, not a StreamsBuilder"),
        ("program:Builder", "type type, not a StreamsBuilder"),
    ],
)
def test_a_wrong_target_is_explained(target: str, words: str) -> None:
    with pytest.raises(TopologyError, match=r"\S") as caught:
        load(target)
    assert words in str(caught.value)
    assert caught.value.code == "EF-PROGRAM"


def test_a_failing_function_is_named_with_its_line(folder: Path) -> None:
    with pytest.raises(TopologyError) as caught:
        load("program:broken")
    assert "ZeroDivisionError" in str(caught.value)
    line = PROGRAM.splitlines().index("    return 1 / 0") + 1
    assert caught.value.where == f"{folder / 'program.py'}:{line}"


@pytest.mark.parametrize(
    "line",
    ["import sys; sys.exit('no data')", "raise type('Stop', (BaseException,), {})('no data')"],
)
def test_a_program_that_ends_while_loaded_is_named_with_its_line(folder: Path, line: str) -> None:
    (folder / "ending.py").write_text(f"topology = 1\n{line}\n")
    (folder / "ended.py").write_text(f"def topology():\n    {line}\n")
    for module in ("ending", "ended"):
        with pytest.raises(TopologyError, match=r"(SystemExit|Stop): no data") as caught:
            load(f"{module}:topology")
        assert caught.value.where == f"{folder / module}.py:2"


def test_a_failing_import_inside_the_module_is_not_a_missing_program(folder: Path) -> None:
    (folder / "imports_absent.py").write_text("\nimport absent_module\ntopology = 1\n")
    with pytest.raises(TopologyError, match=r"ModuleNotFoundError.*absent_module") as caught:
        load("imports_absent:topology")
    assert caught.value.where == f"{folder / 'imports_absent.py'}:2"


def test_a_syntax_error_is_named_with_its_line(folder: Path) -> None:
    (folder / "unreadable.py").write_text("x = 1\ny = = 2\n")
    with pytest.raises(TopologyError) as caught:
        load("unreadable:x")
    assert caught.value.where == f"{folder / 'unreadable.py'}:2"


@pytest.mark.parametrize(
    "broken", ["y = = 2", "return 5", "x = (1,", "\0", "# -*- coding: klingon -*-"]
)
def test_what_is_wrong_in_the_source_is_told_before_it_runs(folder: Path, broken: str) -> None:
    (folder / "early.py").write_text(f"{broken}\nopen('it ran', 'w')\ntopology = None\n")
    with pytest.raises(TopologyError) as caught:
        load("early:topology")
    assert "early" in str(caught.value)
    assert not (folder / "it ran").exists()


@pytest.mark.parametrize(
    "source",
    [
        "topology = 1",
        "topology: int = 1",
        "from other import thing as topology",
        "import other as topology",
        "def topology(): pass",
        "class topology: pass",
        "if (topology := 1): pass",
        "for topology in []: pass",
        "with open(0) as topology: pass",
        "def make():\n    global topology\n    topology = 1",
        "(topology, other), *rest = x",
        "try: pass\nexcept Exception as topology: pass",
        "from other import *",
        "globals()['topology'] = 1",
        "def __getattr__(name): return 1",
    ],
)
def test_a_name_counts_however_the_module_binds_it(folder: Path, source: str) -> None:
    (folder / "binds.py").write_text(source)
    require("binds", "topology")
    require("binds", "topology.inner")


ELSEWHERE = [
    "def f():\n    topology = 1",
    "print(topology)",
    "class A:\n    topology = 1",
    "x.topology = 1",
]


@pytest.mark.parametrize("source", ELSEWHERE)
def test_a_name_that_is_bound_elsewhere_does_not_count(folder: Path, source: str) -> None:
    (folder / "binds.py").write_text(source)
    with pytest.raises(TopologyError, match="has no 'topology'"):
        require("binds", "topology")


def test_a_module_in_a_package_is_looked_at_too(folder: Path) -> None:
    (folder / "shop").mkdir()
    (folder / "shop" / "__init__.py").write_text("")
    (folder / "shop" / "orders.py").write_text("builder = 1")
    require("shop.orders", "builder")
    with pytest.raises(TopologyError, match=r"shop/orders\.py.*'bilder'"):
        require("shop.orders", "bilder")


@pytest.mark.parametrize("target", ["a.b.app:builder", "a.b.c.app:make"])
@pytest.mark.parametrize("packages", [(), ("a",), ("a/b",)])
def test_namespace_modules_are_found(folder: Path, target: str, packages: tuple[str, ...]) -> None:
    file = folder / target.partition(":")[0].replace(".", "/")
    put_current_folder_on_path()
    file.parent.mkdir(parents=True)
    file.with_suffix(".py").write_text(PROGRAM)
    for package in packages:
        (folder / package / "__init__.py").touch()
    module, _, name = target.partition(":")
    with pytest.raises(TopologyError, match="nothing"):
        require(module, "nothing")
    require(module, name)
    assert load(target) == Topology(())


def test_a_run_says_which_file_it_runs(folder: Path) -> None:
    load("program:builder")
    assert place_of("program:builder") == f"program.py ({folder / 'program.py'}), builder"


def test_what_is_waited_for_is_shown_where_it_lasts() -> None:
    """Else lines of progress stand before what `everflow state` says of its result."""
    shown: list[float] = []

    class Line(StatusLine):
        @contextmanager
        def waiting(self, what: str, *, after_s: float = 0.0) -> Iterator[None]:
            shown.append(after_s)
            yield

    with programs.loaded("program:builder", Line(Console())), waiting("reading counts-0"):
        assert shown == [programs.LOAD_SILENT_S, programs.LOAD_SILENT_S]
