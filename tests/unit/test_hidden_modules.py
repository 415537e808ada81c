"""A file of the program that hides a module of Python's is told, not an error of whatever library
met it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run(folder: Path, program: str) -> str:
    """What ``python program.py`` says last, in an order that pytest's own imports do not change."""
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("name", ["queue", "socket", "selectors"])
def test_a_file_that_hides_a_module_of_python_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("mine = 1\n")
    said = run(tmp_path, "from everflow import StreamsBuilder\n")
    file = tmp_path.resolve() / f"{name}.py"
    assert (
        f"SetupError: {file} hides Python's own module {name}, which a library imports. Rename the "
        f"file.\n"
    ) in said
    assert "cannot import name 'StreamsBuilder'" not in said


def test_a_file_of_such_a_name_that_hides_nothing_is_not_blamed(tmp_path: Path) -> None:
    (tmp_path / "turtle.py").write_text("mine = 1\n")
    assert "hides" not in run(tmp_path, "from everflow import StreamsBilder\n")


def test_another_reason_is_not_lost(tmp_path: Path) -> None:
    program = (
        "import importlib\n"
        "def broken(name, package=None): raise AttributeError('half a library')\n"
        "import everflow\nimportlib.import_module = broken\nfrom everflow import TimeWindows\n"
    )
    assert "ImportError: everflow.TimeWindows cannot be imported: half a library" in run(
        tmp_path, program
    )
