"""Arrow types as edges compare and print them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from everflow.serdes import arrow_type
from everflow.serdes.arrow_types import normal_type, type_text
from everflow.topology.graph import column_names, same_type


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.large_string(), pa.string()),
        (pa.list_(pa.field("element", pa.int32(), nullable=False)), pa.list_(pa.int32())),
        (pa.struct([pa.field("a", pa.int32(), nullable=False)]), pa.struct([("a", pa.int32())])),
        (pa.timestamp("ms", "Europe/Berlin"), pa.timestamp("us", "UTC")),
        (pa.dictionary(pa.int32(), pa.string()), pa.string()),
    ],
)
def test_layouts_of_one_type_are_the_same(left: pa.DataType, right: pa.DataType) -> None:
    assert same_type(left, right)
    assert normal_type(left) == normal_type(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.int32(), pa.int64()),
        (pa.struct([("a", pa.int32())]), pa.struct([("b", pa.int32())])),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    ],
)
def test_different_types_differ(left: pa.DataType, right: pa.DataType) -> None:
    assert not same_type(left, right)


@pytest.mark.parametrize(
    "ddl",
    [
        "int",
        "struct<a:string,b:array<double>>",
        "map<string,bigint>",
        "decimal(9,2)",
        "timestamp",
        "timestamp_ntz",
        "boolean",
    ],
)
def test_text_is_ddl_that_reads_back(ddl: str) -> None:
    assert type_text(arrow_type(ddl)) == ddl


def test_column_names_list_the_fields_of_structs() -> None:
    names = column_names(pa.string(), pa.struct([("a", pa.int32())]))
    assert names[:4] == ["key string", "value struct", "value.a int", "timestamp bigint (ms)"]
