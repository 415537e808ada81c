"""module:name -> topology, and what people read when it is wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from everflow.cli.program import load_topology
from everflow.errors import TopologyError
from everflow.topology.graph import Topology

PROGRAM = """
from everflow.topology.graph import Topology

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
    """A folder of programs as the current one; modules imported from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    known = set(sys.modules)
    (tmp_path / "program.py").write_text(PROGRAM)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def load(target: str) -> Topology:
    return load_topology(target, start_session=lambda: None)


@pytest.mark.parametrize("name", ["topology", "builder", "make"])
def test_topologies_builders_and_functions_are_accepted(name: str) -> None:
    assert load(f"program:{name}") == Topology(())


def test_the_session_starts_before_the_module_runs(folder: Path) -> None:
    (folder / "needs_session.py").write_text("import program\nimport session_is_there\n" + PROGRAM)

    def start() -> None:
        (folder / "session_is_there.py").write_text("")

    assert load_topology("needs_session:topology", start_session=start) == Topology(())


def test_workers_find_the_module_too(folder: Path) -> None:
    load("program:topology")
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [str(folder), "elsewhere"]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("program", "write it as module:name"),
        ("program:", "write it as module:name"),
        ("absent:topology", "no module 'absent'"),
        ("program.py:topology", "write it as module:name"),
        ("program:absent", "it has: builder, topology"),
        ("program:number", "is a int, not a StreamsBuilder"),
        ("program:Builder", "is a type, not a StreamsBuilder"),
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


def test_a_failing_import_inside_the_module_is_not_a_missing_program(folder: Path) -> None:
    (folder / "imports_absent.py").write_text("\nimport absent_module\n")
    with pytest.raises(TopologyError, match=r"ModuleNotFoundError.*absent_module") as caught:
        load("imports_absent:topology")
    assert caught.value.where == f"{folder / 'imports_absent.py'}:2"


def test_a_syntax_error_is_named_with_its_line(folder: Path) -> None:
    (folder / "unreadable.py").write_text("x = 1\ny = = 2\n")
    with pytest.raises(TopologyError) as caught:
        load("unreadable:x")
    assert caught.value.where == f"{folder / 'unreadable.py'}:2"
