"""Record-by-record operators: results, and the record that a failure names (design D10)."""

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkValueError

from everflow import serdes
from everflow.protocol.messages import BadRecord
from everflow.records import EdgeBatch
from everflow.topology.graph import EdgeType, FunctionNode
from everflow.topology.plan import SinkOp
from everflow.worker.failures import Failures, RecordFailure
from everflow.worker.task_step import _to_outputs, run_function
from unit.builders import edge_batch, source
from unit.instance.own_serde import OwnSerde

TEXT = serdes.string()
SOURCES = [source("in", key=TEXT, value=serdes.long())]
EDGE = EdgeType(pa.string(), pa.int64())


def batch(
    keys: list[Any], values: list[Any], key: pa.DataType = EDGE.key, value: pa.DataType = EDGE.value
) -> EdgeBatch:
    return edge_batch(keys, values, key, value, partition=3, offset=40)


def called(
    op: str, fn: Callable[[Any, Any], Any], given: EdgeBatch, every_failure: bool = False
) -> EdgeBatch:
    node = FunctionNode("node", ("in",), EDGE, "MAP", op, fn, where="app.py:7")
    return run_function(node, Failures(node, SOURCES, given, every_failure))


def pairs(found: EdgeBatch) -> list[tuple[Any, Any]]:
    return list(zip(found.key.to_pylist(), found.value.to_pylist(), strict=True))


def test_every_result_keeps_the_place_of_its_record() -> None:
    found = called("flat_map_values", lambda k, v: range(v), batch(["a", "b", "c"], [2, 0, 1]))
    assert found.offset.tolist() == [40, 40, 42]
    assert found.seq.tolist() == [0, 0, 2]


FAILING: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "raises": ("map_values", lambda k, v: 1 // (v - 2)),
    "raises while it is drained": (
        "flat_map_values",
        lambda k, v: (1 // (v - 2) for _ in range(1)),
    ),
    "another type": ("map_values", lambda k, v: "text" if v == 2 else v),
    "too large": ("map_values", lambda k, v: 2**70 if v == 2 else v),
    "no pair": ("map", lambda k, v: None if v == 2 else (k, v)),
    "no pairs": ("flat_map", lambda k, v: [(k, v, v)] if v == 2 else [(k, v)]),
    "a text for a pair": ("map", lambda k, v: "ab" if v == 2 else (k, v)),
    "a text for the first pair": (
        "flat_map",
        lambda k, v: {1: [(k, v)], 2: ["ab"], 3: [(k, v), 5]}[v],
    ),
    "a text for values": ("flat_map_values", lambda k, v: "12" if v == 2 else [v]),
    "a dict for values": ("flat_map_values", lambda k, v: {1: "x"} if v == 2 else [v]),
    "a text for pairs": ("flat_map", lambda k, v: "" if v == 2 else [(k, v)]),
    "bytes for a pair": ("flat_map", lambda k, v: [b"ab"] if v == 2 else [(k, v)]),
    "a dict for a pair": ("map", lambda k, v: {"key": k, "value": v} if v == 2 else (k, v)),
    "no truth": ("filter", lambda k, v: np.array([1, 2]) if v == 2 else True),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_failure_names_its_record(name: str) -> None:
    op, fn = FAILING[name]
    with pytest.raises(RecordFailure) as failure:
        called(op, fn, batch(["a", "b", "c"], [1, 2, 3]))
    found = failure.value.failure
    assert found.record == BadRecord("in", 3, 41, "node")
    assert (found.kind, found.where) == ("record", ("app.py:7",))
    assert found.error.partition(":")[0] in {"ZeroDivisionError", "TypeError", "ValueError"}


@pytest.mark.parametrize(
    ("fails", "told"),
    [
        (lambda k, v: v["amount"], True),
        (lambda k, v: v.get("amount"), True),
        (lambda k, v: 1 // (len(v) - 2), False),
    ],
)
def test_who_takes_a_field_of_bytes_is_told(fails: Callable[[Any, Any], Any], told: bool) -> None:
    with pytest.raises(RecordFailure) as failure:
        called("map_values", fails, batch(["a"], [b"{}"], value=pa.binary()))
    hint = "the value is undecoded bytes; give the stream a serde, e.g. value=serdes.json("
    assert (hint in failure.value.failure.error) is told


def test_whoever_writes_columns_in_a_function_reads_that_it_gets_values() -> None:
    def both(key: Any, value: Any) -> Any:
        raise PySparkValueError("Cannot convert column into bool: please use '&' for 'and'")

    with pytest.raises(RecordFailure) as failure:
        called("filter", both, batch(["a"], [1]))
    assert "please use '&' for 'and'" in failure.value.failure.error
    assert "\n  a Python function gets values, not Columns" in failure.value.failure.error


def test_a_value_that_a_serde_of_the_user_cannot_write_names_record_and_line() -> None:
    op = SinkOp(
        name="sink",
        topic="out",
        key_serde=TEXT,
        value_serde=OwnSerde(),
        drop_null_keys=False,
        inputs=(1,),
        where="app.py:9",
    )
    with pytest.raises(RecordFailure) as failure:
        _to_outputs(op, Failures(op, SOURCES, batch(["x", "y"], ["A", "B"], value=pa.string())))
    found = failure.value.failure
    assert (found.error, found.record) == ("KeyError: 'B'", BadRecord("in", 3, 41, "sink"))
    assert found.line is not None
    assert found.line.function == "encode"
    assert found.where == ("app.py:9",)


def test_of_several_failures_each_has_its_own_stack_alone() -> None:
    def fails(key: str, value: int) -> int:
        raise ValueError(f"no {key}")

    with pytest.raises(RecordFailure) as failure:
        called("map_values", fails, batch(["a", "b"], [1, 2]), every_failure=True)
    (other,) = failure.value.others
    assert str(other.__cause__) == "no b"
    assert "no a" not in "".join(traceback.format_exception(other.__cause__))
