"""Which Python values fit which type: nothing is cut off, converted or left out."""

import datetime as dt
import decimal
from collections import deque, namedtuple
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from everflow import serdes
from everflow.serdes import JsonSerde, SerdeError
from everflow.serdes.arrow_types import UnfitError, column_of

Point = namedtuple("Point", "x y")
NOON = dt.datetime(2024, 1, 31, 12, tzinfo=dt.timezone.utc)
DAY = dt.date(2024, 1, 31)

FITS: list[tuple[str, Any, Any]] = [
    ("boolean", True, True),
    ("boolean", np.bool_(False), False),
    ("int", 3, 3),
    ("bigint", np.int16(3), 3),
    ("double", 1.5, 1.5),
    ("double", 3, 3.0),
    ("float", np.float32(0.5), 0.5),
    ("string", "a", "a"),
    ("binary", b"a", b"a"),
    ("binary", bytearray(b"a"), b"a"),
    ("decimal(10,2)", decimal.Decimal("1.25"), decimal.Decimal("1.25")),
    ("decimal(10,2)", 5, decimal.Decimal("5.00")),
    ("date", DAY, DAY),
    ("timestamp", NOON, NOON),
    ("array<int>", [1, None], [1, None]),
    ("array<int>", (1, 2), [1, 2]),
    ("array<int>", {1}, [1]),
    ("array<int>", deque([1]), [1]),
    ("array<double>", np.array([1.5]), [1.5]),
    ("map<string,int>", {"a": 1}, [("a", 1)]),
    ("map<string,int>", [("a", None)], [("a", None)]),
    ("x int, y double", {"x": 1}, {"x": 1, "y": None}),
    ("x int, y double", {"y": 2, "x": None}, {"x": None, "y": 2.0}),
    ("x int, y double", Point(1, 2), {"x": 1, "y": 2.0}),
    ("p struct<x: int, y: int>", {"p": Point(1, 2)}, {"p": {"x": 1, "y": 2}}),
    (
        "p array<struct<x: int, y: int>>",
        {"p": [Point(1, 2), None]},
        {"p": [{"x": 1, "y": 2}, None]},
    ),
]

DOES_NOT: list[tuple[str, Any, str]] = [
    ("boolean", 1, "expected a bool, found int 1"),
    ("int", 1.9, "expected an int, found float 1.9"),
    ("int", 2.0, "expected an int, found float 2.0"),
    ("int", True, "expected an int, found bool True"),
    ("int", np.float64(2.5), "expected an int, found float64"),
    ("int", decimal.Decimal("1.9"), "expected an int, found Decimal"),
    ("int", "1", "expected an int, found str '1'"),
    ("int", 2**31, "from -2147483648 to 2147483647"),
    ("double", True, "expected a float or an int, found bool True"),
    ("double", 2**53 + 1, "an int that a double holds exactly"),
    ("string", 5, "expected a str, found int 5"),
    ("string", b"a", "expected a str, found bytes b'a'"),
    ("binary", "a", "expected bytes, found str 'a'"),
    ("decimal(10,2)", 1.5, "expected a decimal.Decimal or an int, found float 1.5"),
    ("decimal(10,2)", decimal.Decimal("1.255"), "8 digits before the point and 2 behind"),
    ("date", NOON, "expected a datetime.date, found datetime"),
    ("date", 5, "expected a datetime.date, found int 5"),
    ("timestamp", 5, "expected a datetime.datetime, found int 5"),
    ("array<string>", "xyz", "expected a list, found str 'xyz'"),
    ("array<int>", b"xyz", "expected a list, found bytes"),
    ("array<int>", {"a": 1}, "expected a list, found dict"),
    ("array<int>", [1, 1.5], "\\[1\\] .int.: expected an int, found float 1.5"),
    ("map<string,int>", {"a": 1.5}, "\\['a'\\] .int.: expected an int, found float 1.5"),
    ("map<int,int>", [("a", 1)], "\\['a'\\] .int.: expected an int, found str 'a'"),
    ("map<string,string>", "ab", "expected a dict or a list of pairs, found str 'ab'"),
    ("who string, large boolean", {"who": "a", "lrge": True}, "there is no field 'lrge'; did"),
    ("x int, y double", {"zzzz": 1}, "there is no field 'zzzz'; it has x, y"),
    ("x int, y double", {"x": -2.9}, "x .int.: expected an int, found float -2.9"),
    ("x int, y double", (1, 2), r"expected a dict of x, y, found tuple \(1, 2\)"),
    ("x int, y double", [("x", 1), ("y", 2)], "expected a dict of x, y, found list"),
    ("p struct<x: int, y: int>", {"p": Point(1, 2.5)}, r"p\.y .int.: .*an int, found"),
    ("p array<struct<x: int>>", {"p": [{"x": 1}, {"z": 1}]}, r"p\[1\] .*no field 'z'"),
]


@pytest.mark.parametrize(("schema", "value", "found"), FITS)
def test_what_fits_is_taken_as_it_is(schema: str, value: Any, found: Any) -> None:
    assert column_of([None, value, value], serdes.arrow_type(schema)).to_pylist() == [
        None,
        found,
        found,
    ]


@pytest.mark.parametrize(("schema", "value", "says"), DOES_NOT)
def test_what_does_not_fit_is_refused(schema: str, value: Any, says: str) -> None:
    with pytest.raises((pa.ArrowException, TypeError, ValueError, OverflowError), match=says):
        column_of([None, value], serdes.arrow_type(schema))
    if pa.types.is_struct(serdes.arrow_type(schema)):
        with pytest.raises(SerdeError, match=says):
            serdes.json(schema).encode(value)


@pytest.mark.parametrize(
    ("schema", "data", "says"),
    [
        ("n bigint", b'{"n": 1.5}', r"expected.*1.5"),
        ("n bigint", b'{"n": -2.9}', r"expected.*-2.9"),
        ("n bigint", b'{"n": true}', r"expected.*integer"),
        ("n bigint, d decimal(3,1)", b'{"n": 1.5, "d": 1}', r"expected.*1.5"),
        ("t timestamp", b'{"t": 1706702400000}', r"expected.*1706702400000"),
        ("a array<string>", b'{"a": "xyz"}', r"expected.*.xyz"),
        ("a array<bigint>", b'{"a": "12"}', r"expected.*.12"),
        ("a array<array<string>>", b'{"a": ["x"]}', r"a\[0\].*expected.*.x"),
        ("a string", b'[["a", "x"]]', r"expected.*object"),
        ("s struct<a: string>", b'{"s": [["a", "x"]]}', r"expected.*object"),
        ("m map<string,int>", b'{"m": [["a", 1]]}', r"expected.*object"),
    ],
)
def test_json_that_does_not_fit_is_refused(schema: str, data: bytes, says: str) -> None:
    with pytest.raises(SerdeError, match=says):
        serdes.json(schema).decode(data)


def test_a_whole_number_is_an_integer_of_json_however_it_is_written() -> None:
    assert serdes.json("n bigint").decode(b'{"n": 2.0}') == {"n": 2}
    assert serdes.json("n bigint, d decimal(3,1)").decode(b'{"n": 1e2, "d": 0.5}') == {
        "n": 100,
        "d": decimal.Decimal("0.5"),
    }


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_microseconds_are_not_cut_by_a_coarser_type(unit: str) -> None:
    type_ = pa.struct([("t", pa.timestamp(unit))])
    when = dt.datetime(2024, 1, 31, 12, 0, 0, 123_456)
    with pytest.raises(UnfitError, match=r"timestamp_ntz.*cut"):
        column_of([{"t": when}], type_)
    with pytest.raises(SerdeError, match=r"timestamp_ntz.*expected"):
        JsonSerde(type_).decode(b'{"t":"2024-01-31T12:00:00.123456"}')
    whole = when.replace(microsecond=0)
    assert column_of([{"t": whole}], type_).to_pylist() == [{"t": whole}]


def test_a_number_that_is_too_large_for_a_float_is_no_infinity() -> None:
    for items in ([1.0, 1e39], [-3.5e38]):
        with pytest.raises(UnfitError, match=r"large.*float"):
            column_of(items, pa.float32())
    assert column_of([float("inf"), 1.5], pa.float32()).to_pylist() == [float("inf"), 1.5]
