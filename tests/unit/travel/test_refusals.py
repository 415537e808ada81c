"""What cannot travel is refused at its call: line, function, variable and what to do instead."""

from __future__ import annotations

import asyncio
import builtins
import importlib
import io
import json
import sys
import sysconfig
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import serializers
from pyspark.sql.types import DoubleType

from everflow import serdes
from everflow.dsl.expressions import Edge
from everflow.dsl.graph_builder import GraphBuilder, Stream
from everflow.dsl.streams import KStream
from everflow.errors import TopologyError
from everflow.spark.columns import function_of
from everflow.topology.graph import EdgeType, FunctionNode, SourceNode
from everflow.travel.own_code import INSTALLED_FOLDERS, belongs, is_own
from everflow.travel.pickled_objects import PickledObjects
from everflow.travel.refusals import DRIVER_TYPES
from unit.travel.travelling import Program

LOCK = threading.Lock()
FILE = Path(__file__).name
EDGE = EdgeType(pa.string(), pa.string())


@dataclass
class Client:
    name: str
    lock: Any

    def ask(self, value: str) -> str:
        return self.name + value


CLIENTS = {"a": Client("a", LOCK)}


def uses_global(value: str) -> str:
    with LOCK:
        return value


def uses_deep_global(value: str) -> str:
    return CLIENTS["a"].ask(value)


def calls_another(value: str) -> str:
    return uses_global(value)


def refused(fn: Any) -> str:
    """What a user reads whose line app.py:7 takes ``fn`` in."""
    graph = GraphBuilder()
    with pytest.raises(TopologyError) as caught:
        graph.add(
            FunctionNode(
                "MAPVALUES-1", ("in",), EDGE, "MAPVALUES", "map_values", fn, where="app.py:7"
            )
        )
    assert caught.value.where == "app.py:7"
    assert caught.value.code == "EF-NOT-PORTABLE"
    graph.add(
        FunctionNode(
            "MAPVALUES-1", ("in",), EDGE, "MAPVALUES", "map_values", str.upper, where="app.py:7"
        )
    )
    return str(caught.value)


def line_of(fn: Any) -> str:
    return f"{FILE}:{fn.__code__.co_firstlineno}"


AT_FIRST_USE = (
    "which cannot be sent to the Python workers; make it inside the function, or once "
    "per worker at first use, in a "
)


def test_a_variable_of_the_module() -> None:
    assert refused(uses_global) == (
        f"map_values: the function `uses_global` ({line_of(uses_global)}) uses the variable "
        f"`LOCK`, of type lock, {AT_FIRST_USE}"
        "function with @functools.cache that returns it\n  at app.py:7"
    )


def test_a_part_of_a_variable() -> None:
    assert (
        f"({line_of(uses_deep_global)}) uses the variable `CLIENTS['a'].lock`, of type lock, "
        in refused(uses_deep_global)
    )


def test_a_function_that_a_function_calls() -> None:
    assert (
        f"the function `uses_global` ({line_of(uses_global)}) uses the variable `LOCK`"
        in refused(calls_another)
    )


def test_a_captured_variable_of_a_lambda() -> None:
    lock = threading.RLock()
    fn = lambda value: (lock, value)  # noqa: E731
    assert (
        f"the function lambda ({line_of(fn)}) uses the variable `lock`, of type RLock, "
        in refused(fn)
    )


def test_a_default_of_a_parameter() -> None:
    def fn(value: str, one: int = 1, lock: Any = LOCK) -> str:
        return value

    assert "default of `lock`, of type lock, " in refused(fn)


def test_an_object_that_is_called() -> None:
    class Caller:
        def __init__(self) -> None:
            self.lock = LOCK

        def __call__(self, value: str) -> str:
            return value

    assert "map_values: its `function.lock`, of type lock, " in refused(Caller())


def test_a_method_of_an_object() -> None:
    assert "its `function.__self__.lock`, of type lock, " in refused(Client("a", LOCK).ask)


def test_an_open_file(tmp_path: Path) -> None:
    with (tmp_path / "rates.txt").open("w+") as rates:

        def fn(value: str) -> str:
            return rates.readline()

        text = refused(fn)
        assert "variable `rates`, of type TextIOWrapper, " in text
        assert "; open it" in text
    with io.open(__file__, "rb") as raw:  # noqa: UP020
        assert "of type BufferedReader, " in refused(lambda value: raw.read())


def test_what_runs_already() -> None:
    numbers = (n for n in range(3))
    assert "uses the variable `numbers`, of type generator, " in refused(
        lambda value: next(numbers)
    )
    loop = asyncio.new_event_loop()
    try:
        assert "uses the variable `loop" in refused(lambda value: loop.time())
    finally:
        loop.close()


def test_the_topology_itself() -> None:
    graph = GraphBuilder()
    source = graph.add(SourceNode("in", (), EDGE, ("in",), serdes.string(), serdes.string()))
    stream = KStream(Stream(graph, source, Edge.of(serdes.string(), serdes.string())))
    text = refused(lambda value: stream.to("x"))
    assert "uses the variable `stream`, of type KStream, which" in text
    assert "an aggregate or a table" in text


def test_a_serde_is_named_as_such() -> None:
    @dataclass(frozen=True)
    class Odd:
        lock: Any

    graph = GraphBuilder()
    with pytest.raises(
        TopologyError, match=r"source: its `key_serde.lock`, of type lock, .*\n  at app.py:3"
    ):
        graph.add(
            SourceNode("source", (), EDGE, ("in",), Odd(LOCK), serdes.string(), where="app.py:3")  # type: ignore[arg-type]
        )


def test_a_variable_of_another_module_of_the_program(program: Program) -> None:
    program.write("guards", "import threading\nLOCK = threading.Lock()\nOTHER = threading.Lock()\n")
    module = program.module(
        "guarded", "import guards\ndef f(value):\n    with guards.LOCK: return value\n"
    )
    assert (
        "the function `f` (guarded.py:2) uses the variable `guards.LOCK`, of type lock"
        in refused(module.f)
    )


@pytest.mark.parametrize("name", sorted(DRIVER_TYPES))
def test_the_types_of_the_driver_are_called_so(name: str) -> None:
    module, _, cls = name.rpartition(".")
    found = getattr(importlib.import_module(module), cls)
    assert f"{found.__module__}.{found.__qualname__}" == name


def test_a_large_table_is_pickled_once_for_all_functions_that_use_it(program: Program) -> None:
    module = program.module(
        "large",
        """
        class Counted:
            count = 0
            def __reduce__(self):
                Counted.count += 1
                return int, ()
        table = [Counted()]
        def f(value): return table
        def g(value): return table
        """,
    )
    graph = GraphBuilder()
    for number, fn in enumerate((module.f, module.g)):
        graph.add(FunctionNode(f"N-{number}", ("in",), EDGE, "MAPVALUES", "map_values", fn))
    assert module.Counted.count == 1
    assert "large" in sys.modules


# What belongs to the user's program, and functions that PySpark has pickled for a UDF.


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
    udf, others = PickledObjects.of([read_back(noted), lambda: SEEN]).copy()
    udf(5)
    assert others() == [5]
    assert SEEN == []
