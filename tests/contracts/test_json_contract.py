"""What each JSON text means for each type: one table, every decoder and every encoder.

A further way of reading or writing JSON is one more entry of `DECODERS` or `ENCODERS`.
"""

import datetime as dt
import decimal
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from everflow import serdes
from everflow.serdes import JsonSerde, SerdeError
from everflow.serdes.json_serde import may_be_odd, odd_rows, read_chunk, read_rows
from everflow.serdes.json_writing import write_columns, write_rows


def _serde(schema: str) -> JsonSerde:
    return JsonSerde(serdes.arrow_type(schema))


def _one(serde: JsonSerde, text: bytes) -> Any:
    return serde.decode(text)


def _rows(serde: JsonSerde, text: bytes) -> Any:
    column, faults = read_rows([None, text], serde.type)
    if faults:
        raise faults[1]
    return column[1].as_py()


def _column(serde: JsonSerde, text: bytes) -> Any:
    return serde.decode_array(pa.array([text], pa.binary()))[0].as_py()


def _long_column(serde: JsonSerde, text: bytes) -> Any:
    """Among so many that Arrow's parser is asked."""
    column, faults = serde.decode_marked(pa.array([b"{}"] * 2500 + [text], pa.binary()))
    if 2500 in faults:
        raise faults[2500]
    return column[2500].as_py()


def _long_column_of_it(serde: JsonSerde, text: bytes) -> Any:
    column, faults = serde.decode_marked(pa.array([text] * 2500, pa.binary()))
    assert len(faults) in (0, 2500)
    if faults:
        assert len(set(map(str, faults.values()))) == 1
        raise faults[0]
    return column[1499].as_py()


DECODERS: dict[str, Callable[[JsonSerde, bytes], Any]] = {
    "one record": _one,
    "record by record": _rows,
    "column": _column,
    "long column": _long_column,
    "long column of it": _long_column_of_it,
}

UTC = dt.timezone.utc
NOON = dt.datetime(2024, 1, 31, 12, tzinfo=UTC)
READ: list[tuple[str, bytes, Any]] = [
    # objects
    ("n bigint", b"{}", {"n": None}),
    ("n bigint", b'{"n": null}', {"n": None}),
    ("n bigint", b' \t\r\n{"n" : 1 }\n', {"n": 1}),
    ("n bigint", b"null", None),
    ("n bigint", b" null ", None),
    ("n bigint", b'{"N": 1}', {"n": None}),
    ("n bigint", b'{"\\u006e": 1}', {"n": 1}),
    ("n bigint", b'{"n": 1, "n": 2}', {"n": 2}),
    ("n bigint", b'{"n": 1, "n": null}', {"n": None}),
    ("n bigint", b'{"n": 1, "\\u006e": 3}', {"n": 3}),
    ("n bigint", b'{"z": {"n": 1, "n": [2]}, "n": 3, "z": 4}', {"n": 3}),
    ("o struct<p: int>", b'{"o": {"p": 1, "q": 2}}', {"o": {"p": 1}}),
    ("o struct<p: int>", b'{"o": {}}', {"o": {"p": None}}),
    ("o struct<p: int>", b'{"o": null}', {"o": None}),
    # numbers
    ("n bigint", b'{"n": -9223372036854775808}', {"n": -(2**63)}),
    ("n bigint", b'{"n": -0}', {"n": 0}),
    ("n bigint", b'{"n": 2.0}', {"n": 2}),
    ("n bigint", b'{"n": 1e3}', {"n": 1000}),
    ("n bigint", b'{"n": 9007199254740992.0}', {"n": 2**53}),
    ("x double", b'{"x": 1}', {"x": 1.0}),
    ("x double", b'{"x": -0}', {"x": 0.0}),
    ("x double", b'{"x": -0.0}', {"x": -0.0}),
    ("x double", b'{"x": 9007199254740993}', {"x": 9007199254740992.0}),
    ("x double", b'{"x": 18446744073709551617}', {"x": 18446744073709551616.0}),
    ("x double", b'{"x": 1.7976931348623157e308}', {"x": 1.7976931348623157e308}),
    ("x double", b'{"x": 5e-324}', {"x": 5e-324}),
    ("x double", b'{"x": 1e-400}', {"x": 0.0}),
    ("x float", b'{"x": 0.1}', {"x": 0.10000000149011612}),
    ("d decimal(5,2)", b'{"d": 1.250000}', {"d": decimal.Decimal("1.25")}),
    ("d decimal(5,2)", b'{"d": 125e-2}', {"d": decimal.Decimal("1.25")}),
    ("d decimal(5,0)", b'{"d": "-1e2"}', {"d": decimal.Decimal("-100")}),
    ("d decimal(38,38)", b'{"d": 0.' + b"9" * 38 + b"}", {"d": decimal.Decimal("0." + "9" * 38)}),
    ("d decimal(5,2)", b'{"d": "1.25"}', {"d": decimal.Decimal("1.25")}),
    ("d decimal(5,2), x double", b'{"d": 1, "x": -0}', {"d": decimal.Decimal("1.00"), "x": 0.0}),
    ("x double", b'{"x": "NaN"}', {"x": math.nan}),
    ("x double", b'{"x": "-Infinity"}', {"x": -math.inf}),
    ("x array<float>", b'{"x": ["Infinity", 1]}', {"x": [math.inf, 1.0]}),
    ("d decimal(5,2), x double", b'{"x": "NaN"}', {"d": None, "x": math.nan}),
    # texts
    ("s string", b'{"s": "\\u00e9\\u0000\\/"}', {"s": "\u00e9\x00/"}),
    ("s string", b'{"s": "\\ud83d\\ude00"}', {"s": "\U0001f600"}),
    ("s string", '{"s": "\U0001f600\u2028"}'.encode(), {"s": "\U0001f600\u2028"}),
    ("s string", b'{"s": "}null, NaN, 1e400"}', {"s": "}null, NaN, 1e400"}),
    ("t timestamp", b'{"t": "2024-01-31T14:00:00+02:00"}', {"t": NOON}),
    ("t timestamp", b'{"t": "2024-01-31 12:00:00"}', {"t": NOON}),
    ("t timestamp", b'{"t": "2024-01-31T12:00:00.000Z"}', {"t": NOON}),
    ("t timestamp", b'{"t": "2024-01-31t12:00:00z"}', {"t": NOON}),
    ("t timestamp", b'{"t": "2024-01-31T12:00:00.000000000Z"}', {"t": NOON}),
    ("t timestamp", b'{"t": "2024-01-31T12:00:00.5Z"}', {"t": NOON.replace(microsecond=500_000)}),
    ("t timestamp", b'{"t": "2024-01-31T14:00+0200"}', {"t": NOON}),
    ("t timestamp", b'{"t": "2024-01-31T06:30:00-05:30"}', {"t": NOON}),
    ("t timestamp", b'{"t": "0001-01-01T00:00:00Z"}', {"t": dt.datetime.min.replace(tzinfo=UTC)}),
    ("t timestamp_ntz", b'{"t": "2024-01-31T12:00:00"}', {"t": NOON.replace(tzinfo=None)}),
    ("t timestamp_ntz", b'{"t": "2024-01-31T14:00:00+02:00"}', {"t": NOON.replace(tzinfo=None)}),
    ("t timestamp_ntz", b'{"t": "2024-01-31T12:00:00Z"}', {"t": NOON.replace(tzinfo=None)}),
    ("d date", b'{"d": "2024-01-31"}', {"d": dt.date(2024, 1, 31)}),
    ("b binary", b'{"b": "AP8="}', {"b": b"\x00\xff"}),
    # exponents beyond those of Python's decimals
    ("n bigint", b'{"n": 0.0E9999999999999999999}', {"n": 0}),
    ("d decimal(5,2)", b'{"d": -0e9999999999999999999}', {"d": decimal.Decimal("0.00")}),
    ("d decimal(5,2)", b'{"d": 1, "z": 1e-9999999999999999999}', {"d": decimal.Decimal("1.00")}),
    ("x double, d decimal(5,2)", b'{"x": 5E-9999999999999999999}', {"x": 0.0, "d": None}),
    # arrays, maps, bare values
    ("l array<int>", b'{"l": [null, 1.0]}', {"l": [None, 1]}),
    ("x array<double>", b'{"x": [-0, -0.0, null]}', {"x": [0.0, -0.0, None]}),
    ("m map<string,int>", b'{"m": {"a": null, "b": 1, "a": 2}}', {"m": [("a", 2), ("b", 1)]}),
    ("m map<int,int>", b'{"m": {"7": 1}}', {"m": [(7, 1)]}),
    ("m map<boolean,int>", b'{"m": {"true": 1, "false": 2}}', {"m": [(True, 1), (False, 2)]}),
    ("m map<decimal(5,2),int>", b'{"m": {"1.5": 1}}', {"m": [(decimal.Decimal("1.50"), 1)]}),
    ("m map<double,int>", b'{"m": {"1e3": 1, "-0.5": 2}}', {"m": [(1000.0, 1), (-0.5, 2)]}),
    ("m map<date,int>", b'{"m": {"2024-01-31": 1}}', {"m": [(dt.date(2024, 1, 31), 1)]}),
    ("m map<timestamp,int>", b'{"m": {"2024-01-31T14:00:00+02:00": 1}}', {"m": [(NOON, 1)]}),
    ("m map<binary,int>", b'{"m": {"AP8=": 1}}', {"m": [(b"\x00\xff", 1)]}),
    (
        "m map<struct<a:int,d:decimal(5,2)>,int>",
        b'{"m": {"{\\"a\\": 1, \\"d\\": 0.5}": 1, "{}": 2}}',
        {"m": [({"a": 1, "d": decimal.Decimal("0.50")}, 1), ({"a": None, "d": None}, 2)]},
    ),
    ("m map<array<string>,int>", b'{"m": {"[\\"a\\"]": 1}}', {"m": [(["a"], 1)]}),
    ("array<double>", b"[1, null]", [1.0, None]),
    ("map<string, int>", b'{"a": 1}', [("a", 1)]),
    ("bigint", b"5", 5),
    ("string", b'"a"', "a"),
]

REFUSED: list[tuple[str, bytes, str]] = [
    # no JSON
    ("n bigint", b"", "not JSON"),
    ("n bigint", b" ", "not JSON"),
    ("n bigint", b"\xef\xbb\xbf{}", "not JSON"),
    ("n bigint", b'{"n": 1} x', "not JSON"),
    ("n bigint", b'{"n": 1}{"n": 2}', "not JSON"),
    ("n bigint", b'{"n": 1}\nnull\n{"n": 2}', "not JSON"),
    ("n bigint", b'{"n": 1}null{"n": 2}', "not JSON"),
    ("n bigint", b'{"n": 1}\x00{}', "not JSON"),
    ("n bigint", b'{"n": ', "not JSON"),
    ("n bigint", b'{"n": 1,}', "not JSON"),
    ("n bigint", b"{'n': 1}", "not JSON"),
    ("n bigint", b'{"n": 1 /* one */}', "not JSON"),
    ("n bigint", b'{"n": 01}', "not JSON"),
    ("n bigint", b'{"n": +1}', "not JSON"),
    ("x double", b'{"x": .5}', "not JSON"),
    ("x double", b'{"x": NaN}', "not JSON"),
    ("x double", b'{"x": -Infinity}', "not JSON"),
    ("n bigint", b'{"z": NaN}', "not JSON"),
    ("n bigint", b'{"z": Inf}', "not JSON"),
    ("d decimal(5,2)", b'{"d": NaN}', "not JSON"),
    ("s string", b'{"s": "\xff"}', "not JSON"),
    ("n bigint", b'{"z": "\xed\xa0\x80"}', "not JSON"),
    ("s string", b'{"s": "\\ud800"}', "not JSON"),
    ("n bigint", b'{"z": "\\udc00"}', "not JSON"),
    ("n bigint, d decimal(5,2)", b'{"z": "\\udc00"}', "not JSON"),
    ("s string", b'{"s": "a\nb"}', "not JSON"),
    ("s string", b'{"s": "a\tb"}', "not JSON"),
    ("n bigint", b'{"z": ' + b"[" * 2000 + b"]" * 2000 + b"}", "not JSON"),
    ("d decimal(5,2)", b'{"z": ' + b"[" * 2000 + b"]" * 2000 + b"}", "not JSON"),
    # numbers that no double holds, wherever they stand
    ("x double", b'{"x": 1e400}', "not JSON"),
    ("x double", b'{"x": 99e307}', "not JSON"),
    ("n bigint", b'{"z": 99e307}', "not JSON"),
    ("n bigint", b'{"z": ' + b"9" * 310 + b"}", "not JSON"),
    ("d decimal(5,2)", b'{"z": 1e400}', "not JSON"),
    # JSON of another type
    ("n bigint", b"[]", r"expected an object, found \[\]"),
    ("n bigint", b"5", "expected an object, found 5"),
    ("n bigint", b'{"n": 1.5}', "expected an integer, found 1.5"),
    ("n bigint", b'{"n": "5"}', 'n .bigint.: expected an integer, found "5"'),
    ("n bigint", b'{"n": true}', "n .bigint.: expected an integer, found true"),
    ("n bigint", b'{"n": {}}', "expected an integer, found {}"),
    ("n bigint", b'{"n": 9223372036854775808}', "from -9223372036854775808 to 9223372036854775807"),
    ("n bigint", b'{"n": 1e18}', "too large to be read exactly"),
    ("n bigint", b'{"n": -9223372036854775809}', "from -9223372036854775808 to"),
    ("n int", b'{"n": 2147483648}', "from -2147483648 to 2147483647, found 2147483648"),
    ("n tinyint", b'{"n": -129}', "from -128 to 127, found -129"),
    ("x double", b'{"x": "1.5"}', 'expected a number, found "1.5"'),
    ("x double", b'{"x": false}', "expected a number, found false"),
    ("x float", b'{"x": 3.5e38}', "too large for a float"),
    ("s string", b'{"s": 5}', "expected text, found 5"),
    ("s string", b'{"s": ["a"]}', r'expected text, found \["a"\]'),
    ("b boolean", b'{"b": 1}', "expected true or false, found 1"),
    ("b boolean", b'{"b": "true"}', 'expected true or false, found "true"'),
    ("o struct<p: int>", b'{"o": [1]}', r"expected an object, found \[1\]"),
    ("l array<int>", b'{"l": {"0": 1}}', "expected an array, found"),
    ("l array<int>", b'{"l": [1, "2"]}', r'l\[1\] .int.: expected an integer, found "2"'),
    ("m map<string,int>", b'{"m": {"a": "1"}}', r'm\["a"\] .int.: expected an integer, found "1"'),
    ("m map<int,int>", b'{"m": {"a": 1}}', "JSON that does not fit"),
    (
        "t timestamp",
        b'{"t": 1706702400000}',
        "t .timestamp.: expected a time .*, found 1706702400000: .* declare a bigint",
    ),
    ("t timestamp", b'{"t": "noon"}', "JSON that does not fit"),
    ("t timestamp", b'{"t": "0000-01-01T00:00:00Z"}', "JSON that does not fit"),
    ("t timestamp", b'{"t": "0001-01-01T00:00:00+02:00"}', "outside of the years 1 to 9999"),
    ("t timestamp_ntz", b'{"t": "9999-12-31T23:59:59-02:00"}', "outside of the years 1 to 9999"),
    ("d date", b'{"d": "2023-02-29"}', "JSON that does not fit"),
    ("d date", b'{"d": "0000-01-01"}', "JSON that does not fit"),
    ("d date", b'{"d": 19753}', "JSON that does not fit"),
    ("b binary", b'{"b": "?"}', "JSON that does not fit"),
    ("d decimal(5,2)", b'{"d": 1000}', "JSON that does not fit"),
    ("d decimal(5,2)", b'{"d": "NaN"}', "JSON that does not fit"),
    # nothing is cut, nothing is guessed
    ("d decimal(5,2)", b'{"d": 1.255}', "d .decimal.5,2..: .* found 1.255: at most 2 digits"),
    ("d decimal(5,2)", b'{"d": "1.255"}', "at most 2 digits stand behind the point"),
    ("d decimal(5,2)", b'{"d": 1e-3}', "at most 2 digits stand behind the point"),
    ("d decimal(5,0)", b'{"d": 2.5}', "at most 0 digits stand behind the point"),
    ("d decimal(5,2)", b'{"d": 1000}', "at most 3 digits stand before the point"),
    ("d decimal(5,2)", b'{"d": true}', "expected a number, found true"),
    *(
        ("d decimal(9,2)", b'{"d": "%s"}' % text.encode(), "expected a number")
        for text in (
            "1_000",
            " 1.5 ",
            "1.5\\n",
            "+1",
            ".5",
            "5.",
            "007",
            "\u0661",
            "1,5",
            "0x1",
            "",
        )
    ),
    ("n bigint", b'{"n": 1.0000000000000000001}', "expected an integer"),
    ("n bigint", b'{"n": 4503599627370497.25}', "expected an integer"),
    ("n bigint", b'{"n": 1e-400}', "expected an integer"),
    # exponents beyond those of Python's decimals
    ("n bigint", b'{"n": 1e-9999999999999999999}', "n .bigint.: expected an integer"),
    ("d decimal(5,2)", b'{"d": 1e-9999999999999999999}', "d .decimal.5,2..: .* at most 2 digits"),
    ("n bigint, d decimal(5,2)", b'{"n": 1.0000000000000000001}', "expected an integer"),
    *(
        ("t timestamp", b'{"t": "%s"}' % text.encode(), "t .timestamp.: expected a time")
        for text in (
            *("2024-01-31T12:00:00.123456789Z", "2024-01-31T12:00:00.0000001Z", "2024-01-31"),
            *(
                "2024-01-31T12:00:00,5Z",
                "2024-01-31x12:00:00Z",
                "20240131T120000Z",
                "1706702400000",
            ),
            *("2024-W05-3T12:00:00Z", "2024-01-31T24:00:00Z", " 2024-01-31T12:00:00Z"),
            *("2024-01-31T12:00:00Z ", "2024-01-31T12:00:00 Z", "2024-01-31T12:00:60Z", ""),
            *("\u0662024-01-31T12:00:00Z", "2024-01-31T12:00:00+25:00", "2024-02-30T12:00:00Z"),
        )
    ),
    *(
        ("d date", b'{"d": "%s"}' % text.encode(), "d .date.: expected a date")
        for text in ("20240131", "2024-W05-3", "2024-1-1", "2024-01-31T00:00:00Z", " 2024-01-31")
    ),
    ("b binary", b'{"b": "AB=="}', "b .binary.: expected text in base64"),
    ("b binary", b'{"b": 5}', "b .binary.: expected text in base64, found 5"),
    ("b binary", b'{"b": "2024-01-31 12:00:00"}', "b .binary.: expected text in base64"),
    ("o struct<b:binary>", b'{"o": {"b": "2024-01-31T12:00:00Z"}}', "o.b .binary.: expected text"),
    ("x double", b'{"x": "nan"}', "expected a number"),
    ("x double", b'{"x": "1.5"}', "expected a number"),
    ("x double", b'{"x": "Inf"}', "expected a number"),
    # keys of maps
    ("m map<int,int>", b'{"m": {"7": 1, "07": 2}}', r'm\["07"\] .int.: expected an integer'),
    ("m map<int,int>", b'{"m": {" 7": 1}}', r'm\[" 7"\] .int.'),
    ("m map<int,int>", b'{"m": {"1_0": 1}}', r'm\["1_0"\] .int.'),
    ("m map<int,int>", '{"m": {"\u0667": 1}}'.encode(), "expected an integer"),
    ("m map<int,int>", b'{"m": {"0": 1, "-0": 2}}', r'm\["-0"\] .int.: another key'),
    ("m map<boolean,int>", b'{"m": {"True": 1}}', "expected true or false"),
    ("m map<decimal(5,2),int>", b'{"m": {"1.5": 1, "1.50": 2}}', r'm\["1.50"\].* another key'),
    ("m map<decimal(5,2),int>", b'{"m": {"1.505": 1}}', "at most 2 digits"),
    ("m map<double,int>", b'{"m": {"1": 1, "1.0": 2}}', r'm\["1.0"\] .double.: another key'),
    ("m map<float,int>", b'{"m": {"1e39": 1}}', "too large for a float"),
    (
        "m map<timestamp,int>",
        b'{"m": {"2024-01-31T12:00:00Z": 1, "2024-01-31T14:00:00+02:00": 2}}',
        "another key of the map means the same",
    ),
    ("m map<struct<a:int>,int>", b'{"m": {"{}": 1, "{\\"a\\":null}": 2}}', "another key"),
    ("m map<struct<a:int>,int>", b'{"m": {"{\\"a\\":\\"x\\"}": 1}}', r"\]\.a .int.: expected"),
    ("m map<struct<a:int>,int>", b'{"m": {"null": 1}}', "expected JSON"),
    ("m map<array<int>,int>", b'{"m": {"[1": 1}}', "expected JSON"),
    # where
    ("a struct<b:array<struct<c:int>>>", b'{"a":{"b":[{"c":1},{"c":""}]}}', r"a\.b\[1\]\.c .int."),
    ("`a b` struct<`c.d`:int>", b'{"a b":{"c.d":[]}}', r"`a b`\.`c\.d` .int.: .* found \[\]"),
    ("array<array<int>>", b"[[1],[2,true]]", r"fit: \[1\]\[1\] .int.: .* found true"),
    ("m map<string,struct<a:int>>", b'{"m":{"k":{"a":"x"}}}', r'm\["k"\]\.a .int.: '),
    ("n bigint", b"[]", r"fit: the value .struct<n:bigint>.: expected an object, found \[\]"),
    # a schema registry's head
    ("n bigint", b'\x00\x00\x00\x00\x07{"n":1}', r"schema registry \(schema id 7\)"),
    ("d decimal(5,2)", b"\x00\x00\x01\x00\x00\x02\x04", r"schema registry \(schema id 65536\)"),
]


WRITTEN: list[tuple[str, Any, bytes | None]] = [
    ("b bigint, a int", {"a": None, "b": -(2**63)}, b'{"b":-9223372036854775808,"a":null}'),
    ("s string", {"s": '"\\/\n\x00\x1f\x7f'}, b'{"s":"\\"\\\\/\\n\\u0000\\u001f\x7f"}'),
    ("s string", {"s": "\u00e9\u2028\U0001f600"}, '{"s":"\u00e9\u2028\U0001f600"}'.encode()),
    ('`q"` string', {'q"': ""}, b'{"q\\"":""}'),
    ("x double", {"x": 1.0}, b'{"x":1.0}'),
    ("x double", {"x": -0.0}, b'{"x":-0.0}'),
    ("x double", {"x": 1e22}, b'{"x":1e+22}'),
    ("x double", {"x": 5e-324}, b'{"x":5e-324}'),
    ("x double", {"x": math.nan}, b'{"x":"NaN"}'),
    ("x double", {"x": -math.inf}, b'{"x":"-Infinity"}'),
    ("x float", {"x": math.inf}, b'{"x":"Infinity"}'),
    ("x array<double>", {"x": [math.nan, None, 1.0]}, b'{"x":["NaN",null,1.0]}'),
    ("x float", {"x": 0.1}, b'{"x":0.10000000149011612}'),
    ("d decimal(9,2)", {"d": decimal.Decimal("-0.10")}, b'{"d":-0.10}'),
    ("t timestamp", {"t": NOON}, b'{"t":"2024-01-31T12:00:00.000000Z"}'),
    ("t timestamp_ntz", {"t": dt.datetime.max}, b'{"t":"9999-12-31T23:59:59.999999"}'),
    ("d date", {"d": dt.date.min}, b'{"d":"0001-01-01"}'),
    ("b binary, c boolean", {"b": b"\x00\xff", "c": True}, b'{"b":"AP8=","c":true}'),
    ("o struct<p: int>", {"o": None}, b'{"o":null}'),
    ("o struct<p: int>", {"o": {"p": None}}, b'{"o":{"p":null}}'),
    (
        "l array<double>, m map<int,int>",
        {"l": [None, 2.0], "m": {7: 1}},
        b'{"l":[null,2.0],"m":{"7":1}}',
    ),
    ("bigint", 5, b"5"),
    ("double", math.nan, b'"NaN"'),
    ("map<boolean,int>", [(True, 1), (False, None)], b'{"true":1,"false":null}'),
    ("map<double,double>", [(math.nan, math.nan), (1.5, 2.0)], b'{"NaN":"NaN","1.5":2.0}'),
    ("map<decimal(9,2),int>", [(decimal.Decimal("1.5"), 1)], b'{"1.50":1}'),
    ("map<date,int>", [(dt.date(2024, 1, 31), 1)], b'{"2024-01-31":1}'),
    ("map<timestamp,int>", [(NOON, 1)], b'{"2024-01-31T12:00:00.000000Z":1}'),
    ("map<binary,int>", [(b"\x00\xff", 1)], b'{"AP8=":1}'),
    ("map<struct<a:int>,int>", [({"a": 1}, 1)], b'{"{\\"a\\":1}":1}'),
    ("map<array<string>,int>", [(["a"], 1)], b'{"[\\"a\\"]":1}'),
    ("string", "a", b'"a"'),
    ("array<string>", [], b"[]"),
    ("a int", None, None),
]


def _among_others(serde: JsonSerde, column: pa.Array) -> Any:
    nulls = pa.nulls(500, serde.type)
    return serde.encode_array(pa.concat_arrays([nulls, column, nulls]))[500].as_py()


ENCODERS: dict[str, Callable[[JsonSerde, pa.Array], Any]] = {
    "one value": lambda serde, column: serde.encode(column[0].as_py()),
    "value by value": lambda serde, column: write_rows(column)[0].as_py(),
    "in columns": lambda serde, column: write_columns(column)[0].as_py(),
    "column": lambda serde, column: serde.encode_array(column)[0].as_py(),
    "long column": _among_others,
}


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize(("schema", "value", "text"), WRITTEN)
def test_a_value_is_written(encoder: str, schema: str, value: Any, text: bytes | None) -> None:
    serde = _serde(schema)
    assert ENCODERS[encoder](serde, pa.array([value], serde.type)) == text


TEXTS = ["", "a", "\u00e9", '"', "\\", "\n", "\x7f", None]


@pytest.mark.parametrize("first", TEXTS)
@pytest.mark.parametrize("second", TEXTS)
def test_texts_with_and_without_escapes_stand_beside_each_other(
    first: str | None, second: str | None
) -> None:
    """A column of texts that stay as they are has its quotes with the names of the fields."""
    type_ = serdes.arrow_type("a string, n int, b string, o struct<c: string, d: string>")
    plain = {"a": "x", "n": 1, "b": "y", "o": {"c": "", "d": "z"}}
    rows = [plain, {"a": first, "n": None, "b": second, "o": {"c": second, "d": first}}]
    column = pa.array([*rows, {**plain, "o": None}, None, *rows], type_)
    for part in (column, column.slice(1), column.slice(2, 1), column.slice(0, 1), column[:0]):
        assert write_columns(part).equals(write_rows(part))


@pytest.mark.parametrize("count", [0, 500, 20_000])
def test_a_value_that_cannot_be_written_is_named(count: int) -> None:
    no_text = pa.array([b"a", b"\xff"], pa.binary()).view(pa.string())
    no_year = pa.array([0, 2**62], pa.int64()).view(serdes.arrow_type("timestamp"))
    for bad in (no_text, no_year):
        column = pa.concat_arrays([pa.nulls(count, bad.type), bad])
        for values in (column, pa.StructArray.from_arrays([column], names=["v"])):
            with pytest.raises(SerdeError, match="written") as caught:
                JsonSerde(values.type).encode_array(values)
            assert caught.value.index == count + 1


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(("schema", "text", "value"), READ)
def test_a_text_is_read(decoder: str, schema: str, text: bytes, value: Any) -> None:
    found = DECODERS[decoder](_serde(schema), text)
    if "NaN" not in str(text):
        assert found == value
    if "x" in schema:
        assert repr(found) == repr(value)  # 0.0 equals -0.0


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(("schema", "text", "says"), REFUSED)
def test_a_text_is_refused(decoder: str, schema: str, text: bytes, says: str) -> None:
    serde = _serde(schema)
    with pytest.raises(SerdeError) as one:
        serde.decode(text)
    with pytest.raises(SerdeError, match=says) as caught:
        DECODERS[decoder](serde, text)
    assert str(caught.value) == str(one.value)
    assert len(str(one.value)) < 1000


def test_arrows_parser_reads_what_most_records_are() -> None:
    """Otherwise the table would say nothing about it."""
    type_ = serdes.arrow_type("s string, x double, n bigint, b boolean, o struct<p: int>")
    text = b'{"z":["Nan",{"x":"Info"}],"s":"a\\n\\u00e9","x":-1.5e99,"n":7,"b":true,"o":{"p":null}}'
    for data in ([text], [text, b"{}"], [text, b"{}", b"garbage", None], [b"{}", text, b"null"]):
        found = read_chunk(pa.array(data, pa.binary()), type_)
        assert found is not None
        assert found[0].equals(read_rows(data, type_)[0])


def test_what_arrows_parser_must_not_see_it_does_not_see() -> None:
    """Some of these end the process, or are read beyond the end of a buffer."""
    kept_from_it = [
        *(b"", b"{", b"null", b" {}", b"{} ", b"[]", b'{"a":1', b'"a":1}', b"\xef\xbb\xbf{}"),
        *(b"{}null{}", b"{} null{}", b"{}\nnull {}", b"{}\tnull{}", b"{}\0{}", b'{"a":\n1}'),
        *(b'{"a":NaN}', b'{"a":[1,-Inf]}', b'{"a": Infinity}', b'{"a":[NaN]}'),
        *(b'{"a":99e307}', b'{"a":1E+308}', b'{"a":9e0307}', b'{"a":' + b"9" * 200 + b"}"),
        b'{"a":' + b"[" * 501 + b"]" * 501 + b"}",
    ]
    seen = [
        *(b"{}", b'{"a":{"b":{}}}', b'{"a":"Info, Nancy","I":"n"}', b'{"a": "null"}'),
        *(b'{"a":1e99,"b":1e-300}', b'{"a":' + b"9" * 199 + b"}", b'{"a":"' + b"x" * 900 + b'"}'),
        *(b"{}{}", b"{[}", b"{e123}", b"{\xff}"),  # which it reads as we do, or refuses
    ]
    data = pa.array([*kept_from_it, *seen], pa.binary())
    assert odd_rows(data).tolist() == [True] * len(kept_from_it) + [False] * len(seen)
    for text in (*kept_from_it, *seen):
        assert odd_rows(pa.array([b"{}", text, b"{}"], pa.binary()).slice(1)).tolist() == [
            text in kept_from_it,
            False,
        ]


def test_usual_texts_are_told_from_odd_ones_without_a_search_in_each() -> None:
    """Names in which NaN seems to begin, and rows in which there are numbers everywhere."""
    usual = b'{"itemName":"Nancy, in Ingolstadt","at":1700006400000,"price":100000,"in":"USERInfo"}'
    numbers = b'{"a":[' + b",".join([b"9" * 19] * 50) + b"]}"
    text = np.frombuffer(b"".join([usual] * 50 + [numbers] * 50), np.uint8)
    assert not may_be_odd(text, len(numbers))
    for odd in (b'{"a":NaN}', b'{"a":[-Inf]}', b'{"a":' + b"9" * 200 + b"}", b"{}null{}"):
        for before in range(0, 300, 7):
            padded = np.frombuffer(b"{" + b" " * before + b"}" + odd, np.uint8)
            assert may_be_odd(padded, len(odd))


@pytest.mark.parametrize("schema", ["s string", "s string, d decimal(5,2)", "n bigint"])
def test_a_value_of_20_mb_is_read_and_a_bad_one_named(schema: str) -> None:
    serde = _serde(schema)
    text = b'{"s":"' + b"x" * 20_000_000 + b'","n":1}'
    column, faults = serde.decode_marked(
        pa.array([b"{}", text, text[:-1], text.replace(b'":"x', b'":"\xff'), b"{}"], pa.binary())
    )
    assert list(faults) == [2, 3]
    assert all(len(str(fault)) < 1000 for fault in faults.values())
    read = column[1].as_py()
    assert len(read["s"]) == 20_000_000 if "s" in read else read == {"n": 1}


def test_a_bad_record_costs_its_own_row_only() -> None:
    serde = _serde("n bigint")
    texts = [b'{"n":%d}' % n for n in range(40_000)]
    bad = {0: b"", 5_000: b'{"n":"x"}', 20_000: b'{"n":1e400}', 39_999: b'{"n":1'}
    for row, text in bad.items():
        texts[row] = text
    column, faults = serde.decode_marked(pa.array(texts, pa.binary()))
    assert list(faults) == sorted(bad)
    assert column.field(0).to_pylist() == [None if n in bad else n for n in range(40_000)]
    with pytest.raises(SerdeError, match=r"^not JSON") as caught:
        serde.decode_array(pa.array(texts, pa.binary()))
    assert caught.value.index == 0
    assert column.null_count == len(bad)
