"""What belongs to the user's program, and functions that PySpark has pickled for a UDF."""

from __future__ import annotations

import builtins
import importlib
import json
import sys
import sysconfig
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import serializers
from pyspark.sql.types import DoubleType

from everflow.spark.columns import function_of
from everflow.travel.own_code import INSTALLED_FOLDERS, belongs, is_own
from everflow.travel.parcel import Parcel
from unit.travel.travelling import Program

LIBRARY = frozenset({"/usr/lib/python3.11"})
PARTS = st.sampled_from(
    ["srv", "ann", "shop", ".venv", "lib", "python3.11", "venv", "src", "app.zip", "opt", "usr"]
)


def nothing_recorded(file: str, top: str) -> bool:
    return False


@pytest.mark.parametrize(
    ("name", "files", "own"),
    [
        ("__main__", ("/usr/bin/everflow",), True),
        ("__main__", (), True),
        ("__mp_main__", (), True),
        ("shop", ("/srv/ann/shop.py",), True),
        ("shop.prices", ("/srv/ann/project/src/shop/prices.py",), True),
        ("shop", ("/srv/ann/.venv/lib/python3.11/site-packages/shop/__init__.py",), False),
        ("shop", ("/usr/lib/python3/dist-packages/shop.py",), False),
        ("shop", ("/srv/ann/apps.zip/shop.py",), True),
        ("shop", ("/srv/ann/shop", "/srv/ben/shop"), True),  # a namespace package
        ("google", ("/srv/ann/.venv/lib/python3.11/site-packages/google",), False),
        ("shop", ("/srv/ann/shop.cpython-311-x86_64-linux-gnu.so",), False),
        ("shop", ("/usr/lib/python3.11/shop.py",), False),
        ("calendar", ("/srv/ann/calendar.py",), True),  # a user's file with a library's name
        ("json", ("/usr/lib/python3.11/json/__init__.py",), False),
        ("sys", (), False),
        ("made_by_a_console", (), True),
        ("everflow.dsl", ("/srv/ann/everflow/src/everflow/dsl/__init__.py",), False),
        ("everflow_shop", ("/srv/ann/everflow_shop.py",), True),
        ("pyspark.sql", ("/opt/spark/python/pyspark/sql/__init__.py",), False),
    ],
)
def test_belongs(name: str, files: tuple[str, ...], own: bool) -> None:
    assert belongs(name, files, LIBRARY, nothing_recorded) is own


@given(
    st.lists(PARTS, max_size=6),
    st.sampled_from(sorted(INSTALLED_FOLDERS)),
    st.lists(PARTS, max_size=3),
)
def test_site_folders_are_installed(before: list[str], folder: str, after: list[str]) -> None:
    file = "/".join(["", *before, folder, *after, "shop.py"])
    assert not belongs("shop", (file,), LIBRARY, nothing_recorded)
    assert belongs("shop", (file,), LIBRARY, nothing_recorded, holds_topology=True)
    elsewhere = file.replace(folder, "packages")
    assert belongs("shop", (elsewhere,), frozenset(), nothing_recorded)


@given(st.lists(PARTS, max_size=6))
def test_a_folder_is_the_librarys_only_as_a_whole(parts: list[str]) -> None:
    file = "/".join(["", "usr", *parts, "shop.py"])
    inside = file.startswith("/usr/lib/python3.11/")
    assert belongs("shop", (file,), LIBRARY, nothing_recorded) is not inside


def test_modules_of_this_process(program: Program) -> None:
    assert is_own(sys.modules[__name__])
    assert not any(is_own(module) for module in (sys, json, pytest, sysconfig, importlib, st))
    assert is_own(ModuleType("made_here"))


def test_a_distribution_installed_into_any_folder_is_installed(program: Program) -> None:
    folder = program.folder / "target"
    metadata = folder / "shop-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "RECORD").write_text(
        "installed_shop/__init__.py,,\ninstalled_shop/prices.py,,\nshop-1.0.dist-info/RECORD,,\n"
    )
    program.write("target.installed_shop.__init__", "")
    program.write("target.installed_shop.prices", "RATE = 1\n")
    program.write("target.beside_it", "RATE = 1\n")
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        assert not is_own(importlib.import_module("installed_shop.prices"))
        assert is_own(importlib.import_module("beside_it"))
    finally:
        sys.path.remove(str(folder))


SEEN: list[object] = []
noted: Callable[[object], None] = lambda value: SEEN.append(value)  # noqa: E731  # is pickled by value, as what a decorator has wrapped is


def read_back(function: Callable[..., Any]) -> Callable[..., Any]:
    pickling: Any = serializers  # its classes are typed in Spark 4.2, and no longer in 4.3
    serializer = pickling.CloudPickleSerializer()
    found, kind = function_of(serializer.dumps((function, DoubleType())))
    assert kind == DoubleType()
    return found


def test_it_has_its_module_s_variables_and_the_module_stays_as_it_was() -> None:
    before = dict(globals())
    found = read_back(noted)
    found(1)
    assert found is not noted
    assert SEEN == [1]
    assert globals() == before
    assert before["__builtins__"] in (builtins, vars(builtins))


def test_functions_inside_it_have_them_too() -> None:
    def outer(value: object) -> None:
        (lambda: noted(value))()

    SEEN.clear()
    read_back(outer)(2)
    assert SEEN == [2]


def test_a_closure_has_what_it_held() -> None:
    held = [3]
    found = read_back(lambda: held)
    held.append(4)
    assert found() == [3]


def test_it_shares_variables_with_other_functions_of_the_program_in_a_worker() -> None:
    SEEN.clear()
    udf, others = Parcel.of([read_back(noted), lambda: SEEN]).copy()
    udf(5)
    assert others() == [5]
    assert SEEN == []
