"""What cannot travel is refused at its call: line, function, variable and what to do instead."""

from __future__ import annotations

import asyncio
import importlib
import io
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from everflow import serdes
from everflow.dsl.expressions import Edge
from everflow.dsl.graph_builder import GraphBuilder, Stream
from everflow.dsl.streams import KStream
from everflow.errors import TopologyError
from everflow.topology.graph import EdgeType, FunctionNode, SourceNode
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

    assert "uses the default of `lock`, of type lock, " in refused(fn)


def test_an_object_that_is_called() -> None:
    class Caller:
        def __init__(self) -> None:
            self.lock = LOCK

        def __call__(self, value: str) -> str:
            return value

    assert "map_values: its `function.lock`, of type lock, which cannot be sent" in refused(
        Caller()
    )


def test_a_method_of_an_object() -> None:
    assert "its `function.__self__.lock`, of type lock, " in refused(Client("a", LOCK).ask)


def test_an_open_file(tmp_path: Path) -> None:
    with (tmp_path / "rates.txt").open("w+") as rates:

        def fn(value: str) -> str:
            return rates.readline()

        text = refused(fn)
        assert (
            "the variable `rates`, of type TextIOWrapper, which cannot be sent to the Python "
            "workers; open it in"
        ) in text
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
    assert "what a function remembers belongs into an aggregate or a table" in text


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
