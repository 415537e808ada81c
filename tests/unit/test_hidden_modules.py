"""A file of the program that hides a module of Python's is told, not an error of whatever library
met it."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest

from everflow.hidden_modules import NEEDED


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


@pytest.mark.parametrize("name", ["json", "queue", "orjson"])
def test_a_folder_that_hides_a_library_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("mine = 1\n")
    said = run(tmp_path, "from everflow import StreamsBuilder, serdes, KafkaStreams\n")
    assert f"SetupError: {tmp_path.resolve() / name} hides " in said
    assert "Rename the folder." in said


@pytest.mark.parametrize("name", ["orjson", "pyarrow", "lmdb", "anyio"])
def test_a_file_that_hides_an_installed_package_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("mine = 1\n")
    program = (
        "from everflow import serdes, KafkaStreams\nfrom everflow.testing import EmbeddedBroker\n"
    )
    said = run(tmp_path, program + "import everflow.testing as t\nt.TopologyTestDriver\n")
    file = tmp_path.resolve() / f"{name}.py"
    assert f"SetupError: {file} hides the installed package {name} (" in said
    assert "Rename the file." in said


def test_what_everflow_needs_is_what_its_distribution_asks_for() -> None:
    needs = [one for one in requires("everflow") or () if "extra" not in one]
    asked = {re.split(r"[^\w.-]", one)[0].replace("-", "_") for one in needs}
    owners = packages_distributions().items()
    names = {name for name, all_ in owners if asked & {one.replace("-", "_") for one in all_}}
    code = {name for name in names if name.isidentifier() and name != "cpython"}
    assert code | {"py4j"} == set(NEEDED)


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
