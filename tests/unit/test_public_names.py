"""The package's public names: all there, imported on first use only, and enough to type a program
and to catch its errors."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import everflow
from everflow.snapshots import query_errors

HEAVY = ("pyspark", "pyarrow", "confluent_kafka", "kafka", "lmdb")


def test_every_name_is_there_and_the_type_checker_sees_the_same_ones() -> None:
    found = {name: getattr(everflow, name) for name in everflow.__all__}
    assert [name for name, value in found.items() if value is None] == []
    tree = ast.parse(Path(everflow.__file__).read_text())
    checked = {
        (f"{node.module}.{alias.name}".removeprefix("everflow."), alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    at_run_time = {
        (f"{path}.{name}".removeprefix("everflow."), name)
        for name, path in everflow._MODULE_OF.items()
    }
    at_run_time |= {
        (path.removeprefix("everflow."), name) for name, path in everflow._MODULES.items()
    }
    assert checked == at_run_time
    assert sorted(name for _, name in checked) == sorted(everflow.__all__)


def test_every_error_that_a_query_raises_can_be_caught_by_its_public_name() -> None:
    here = query_errors.__name__
    raised = {
        name
        for name, found in vars(query_errors).items()
        if isinstance(found, type) and found.__module__ == here
    }
    assert raised <= set(everflow.__all__)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = f"import everflow, sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
