"""Bytes as Java writes them, values as Arrow holds them, errors by row; own serdes of users."""

import datetime as dt
import decimal
import math
import pickle
import re
import struct
from collections import deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as t

from everflow import StreamsBuilder, TopologyError, Windowed, serdes
from everflow.serdes import JsonSerde, Serde, SerdeError
from everflow.serdes.arrow_types import UnfitError, column_of
from everflow.serdes.by_record import adopted
from everflow.serdes.windowed import (
    python_keys,
    split_window_store_key,
    window_store_key,
    window_store_keys,
)
from everflow.testing import TopologyTestDriver

# what Java's serializers write (kafka-clients 4.2.1: LongSerializer, IntegerSerializer,
# ShortSerializer, DoubleSerializer, FloatSerializer, BooleanSerializer, StringSerializer,
# ListSerializer)
JAVA = [
    (serdes.boolean(), True, "01"),
    (serdes.boolean(), False, "00"),
    (serdes.short(), 258, "0102"),
    (serdes.short(), -2, "fffe"),
    (serdes.float_(), 1.5, "3fc00000"),
    (serdes.float_(), -0.0, "80000000"),
    (serdes.float_(), math.inf, "7f800000"),
    (serdes.list_(serdes.int_()), [1, None, -2], "0000000001000000010000000300000001fffffffe"),
    (serdes.list_(serdes.int_()), [], "000000000000000000"),
    (serdes.list_(serdes.long()), [None, None], "0000000002000000000000000100000002"),
    (serdes.list_(serdes.short()), [7, -1], "0000000000000000020007ffff"),
    (serdes.list_(serdes.float_()), [1.5, None], "000000000100000001000000023fc00000"),
    (serdes.list_(serdes.double()), [None, 0.5], "000000000100000000000000023fe0000000000000"),
    (
        serdes.list_(serdes.string()),
        ["a", None, "bcd"],
        "01000000030000000161ffffffff00000003626364",
    ),
    (serdes.list_(serdes.string()), ["a", ""], "0100000002000000016100000000"),
    (serdes.list_(serdes.boolean()), [True, None, False], "01000000030000000101ffffffff0000000100"),
    (
        serdes.list_(serdes.bytes_()),
        [b"\x00\xff", b"", b"\x01"],
        "01000000030000000200ff000000000000000101",
    ),
    (
        serdes.list_(serdes.list_(serdes.int_())),
        [[1, None], None, []],
        "0100000003000000110000000001000000010000000200000001ffffffff00000009000000000000000000",
    ),
    (serdes.long(), 1, "0000000000000001"),
    (serdes.long(), -1, "ffffffffffffffff"),
    (serdes.long(), -(2**63), "8000000000000000"),
    (serdes.int_(), 258, "00000102"),
    (serdes.int_(), -2, "fffffffe"),
    (serdes.double(), 1.0, "3ff0000000000000"),
    (serdes.double(), -0.0, "8000000000000000"),
    (serdes.double(), math.inf, "7ff0000000000000"),
    (serdes.string(), "é", "c3a9"),
    (serdes.string(), "", ""),
    (serdes.bytes_(), b"\x00\xff", "00ff"),
    (serdes.time_windowed(serdes.string(), 5000), Windowed("a", 5000, 10000), "610000000000001388"),
    (
        serdes.session_windowed(serdes.string()),
        Windowed("a", 1, 5000),
        "6100000000000013880000000000000001",
    ),
]


@pytest.mark.parametrize(("serde", "value", "expected"), JAVA)
def test_bytes_are_javas(serde: Serde, value: Any, expected: str) -> None:
    assert serde.encode(value) == bytes.fromhex(expected)
    assert serde.decode(bytes.fromhex(expected)) == value
    column = column_of([None, value, None, value], serde.type)
    data = serde.encode_array(column)
    assert data.type == pa.binary()
    assert [None if item is None else item.hex() for item in data.to_pylist()] == [
        None,
        expected,
        None,
        expected,
    ]
    assert serde.decode_array(data).equals(column)
    assert python_keys(serde.decode_array(data[1:3])) == [value, None]


def test_a_float_is_rounded_to_the_nearest_and_its_columns_keep_the_bits_of_nans() -> None:
    serde = serdes.float_()
    assert serde.encode(0.1) == bytes.fromhex("3dcccccd")
    assert serde.encode(math.nan) == bytes.fromhex("7fc00000")
    column = serde.decode_array(pa.array([bytes.fromhex("ffc00001")], pa.binary()))
    assert serde.encode_array(column)[0].as_py() == bytes.fromhex("ffc00001")


def _of_lengths(*entries: bytes | None) -> bytes:
    """A list as a serializer writes it of which Java does not know that its entries are alike."""
    parts = [struct.pack(">i", -1 if one is None else len(one)) + (one or b"") for one in entries]
    return b"\x01" + struct.pack(">i", len(entries)) + b"".join(parts)


def test_a_list_of_numbers_is_read_in_the_other_form_too() -> None:
    """As Java's ListDeserializer does, in one column with lists that it has written."""
    serde = serdes.list_(serdes.int_())
    four = bytes.fromhex("00000004")
    rows = [_of_lengths(four, None), serde.encode([4]), None, _of_lengths()]
    assert serde.decode(rows[0]) == [4, None]
    assert serde.decode_array(pa.array(rows, pa.binary())).to_pylist() == [[4, None], [4], None, []]
    with pytest.raises(SerdeError) as caught:
        serde.decode_array(pa.array([*rows, _of_lengths(b"abc"), b""], pa.binary()))
    assert caught.value.index == 4
    assert "expected 4 bytes, found 3" in str(caught.value)


@pytest.mark.parametrize("lengths", [[3] * 500, [2_000, 0, 3], [0, 1, 40] * 20])
def test_many_short_lists_and_few_long_ones_are_read_alike(lengths: list[int]) -> None:
    serde = serdes.list_(serdes.string())
    rows = [[None if at % 7 == 3 else "x" * (at % 5) for at in range(one)] for one in lengths]
    data = serde.encode_array(pa.array(rows, serde.type))
    assert data.to_pylist() == [serde.encode(row) for row in rows]
    assert serde.decode_array(data).to_pylist() == rows
    broken = [*data.to_pylist()]
    broken[len(rows) // 2] = (broken[len(rows) // 2] or b"")[:-1] + b"?!"
    with pytest.raises(SerdeError) as caught:
        serde.decode_array(pa.array(broken, pa.binary()))
    assert caught.value.index == len(rows) // 2


def test_a_list_takes_a_serde_of_its_entries() -> None:
    with pytest.raises(SerdeError, match=r"list_.*entries.*e\.g"):
        serdes.list_("string")  # type: ignore[arg-type]
    assert repr(serdes.list_(serdes.long())) == "list(long)"


def test_every_nan_is_written_in_javas_canonical_form() -> None:
    strange = struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0]
    assert serdes.double().encode(strange) == bytes.fromhex("7ff8000000000000")
    assert (
        serdes.double().encode_array(pa.array([strange])).to_pylist()[0].hex() == "7ff8000000000000"
    )


@pytest.mark.parametrize(
    "serde", [case[0] for case in JAVA] + [serdes.json("a int"), serdes.packed("a int")]
)
def test_null_and_empty_columns_stay_null_and_empty(serde: Serde) -> None:
    assert serde.encode(None) is None
    assert serde.decode(None) is None
    for rows in ([], [None], [None, None]):
        data = serde.encode_array(pa.array(rows, serde.type))
        assert data.to_pylist() == rows
        assert serde.decode_array(data).equals(pa.array(rows, serde.type))


_EMPTY = bytes.fromhex("0100000000")


@pytest.mark.parametrize(
    ("serde", "good", "bad"),
    [
        (serdes.long(), b"\x00" * 8, b"\x00" * 7),
        (serdes.int_(), b"\x00" * 4, b""),
        (serdes.double(), b"\x00" * 8, b"\x00" * 9),
        (serdes.string(), b"ok", b"\xff"),
        (serdes.boolean(), b"\x01", b"\x02"),
        (serdes.boolean(), b"\x00", b""),
        (serdes.short(), b"\x00" * 2, b"\x00" * 4),
        (serdes.float_(), b"\x00" * 4, b"\x00" * 8),
        (serdes.list_(serdes.int_()), b"\x00" * 9, b""),
        (serdes.list_(serdes.int_()), b"\x00" * 9, b"\x02" + b"\x00" * 8),
        (serdes.list_(serdes.int_()), b"\x00" * 9, b"\x00" * 10),
        (serdes.list_(serdes.int_()), b"\x00" * 9, b"\x00" * 8 + b"\x01"),
        (serdes.list_(serdes.int_()), b"\x00" * 9, b"\x00\xff\xff\xff\xff" + b"\x00" * 4),
        (serdes.list_(serdes.int_()), b"\x00" * 9, b"\x00\x7f\xff\xff\xff" + b"\x00" * 4),
        (  # the second null entry stands before the first
            serdes.list_(serdes.int_()),
            b"\x00" * 9,
            bytes.fromhex("0000000002" + "0000000100000000" + "00000002"),
        ),
        (  # the null entry is none of the list
            serdes.list_(serdes.int_()),
            b"\x00" * 9,
            bytes.fromhex("0000000001" + "00000005" + "00000001"),
        ),
        (serdes.list_(serdes.string()), _EMPTY, b"\x00" * 9),
        (serdes.list_(serdes.string()), _EMPTY, _EMPTY + b"\x00"),
        (serdes.list_(serdes.string()), _EMPTY, bytes.fromhex("0100000001")),
        (serdes.list_(serdes.string()), _EMPTY, bytes.fromhex("0100000001fffffffe")),
        (serdes.list_(serdes.string()), _EMPTY, bytes.fromhex("01000000010000000361")),
        (serdes.list_(serdes.string()), _EMPTY, bytes.fromhex("010000000100000001ff")),
        (serdes.json("a int"), b'{"a":1}', b'{"a":'),
        (serdes.json("a int"), b'{"a":1}', b'{"a":"x"}'),
        (serdes.json("a int"), b'{"a":1}', b"[1]"),
        (serdes.json("a int"), b'{"a":1}', b""),
        (serdes.json("a int"), b'{"a":1}', b'{"a":true}'),
        (serdes.json("a int"), b'{"a":1}', b'{"a":1} x'),
        (serdes.json("a double"), b'{"a":1e308}', b'{"a":1e309}'),
        (serdes.json("a float"), b'{"a":-3.4e38}', b'{"a":-3.5e38}'),
        (serdes.json("a double, d decimal(9,2)"), b'{"a":1e308}', b'{"a":-1e309}'),
        (serdes.packed("a int"), b"\x00" * 5, b"\x00" * 4),
        (serdes.packed("a int"), b"\x00" * 5, b"\x00" * 6),
        (serdes.packed("a string"), b"\x00\x00\x00\x00\x01x", b"\x00\x00\x00\x00\x02x"),
        (serdes.time_windowed(serdes.string(), 10), b"\x00" * 8, b"\x00" * 7),
        (serdes.time_windowed(serdes.int_(), 10), b"\x00" * 12, b"\x00" * 11),
        (serdes.session_windowed(serdes.string()), b"\x00" * 16, b"\x00" * 15),
    ],
)
def test_the_first_bad_row_is_named(serde: Serde, good: Any, bad: Any) -> None:
    with pytest.raises(SerdeError) as caught:
        serde.decode_array(pa.array([good, None, bad, good, bad], pa.binary()))
    assert caught.value.index == 2
    with pytest.raises(SerdeError):
        serde.decode(bad)
    serde.decode(good)


@pytest.mark.parametrize(
    ("serde", "value"),
    [
        (serdes.long(), "1"),
        (serdes.long(), True),
        (serdes.long(), 2**63),
        (serdes.int_(), 2**31),
        (serdes.double(), "x"),
        (serdes.boolean(), 1),
        (serdes.boolean(), "true"),
        (serdes.short(), 2**15),
        (serdes.short(), True),
        (serdes.float_(), "x"),
        (serdes.float_(), 1e39),
        (serdes.float_(), 10**400),
        (serdes.list_(serdes.int_()), 1),
        (serdes.list_(serdes.int_()), "12"),
        (serdes.list_(serdes.int_()), ["1"]),
        (serdes.list_(serdes.string()), {"a": 1}),
        (serdes.string(), b"x"),
        (serdes.string(), "\ud800"),
        (serdes.bytes_(), "x"),
        (serdes.json("a int"), {"a": "x"}),
        (serdes.packed("a int"), 5),
        (serdes.time_windowed(serdes.string(), 10), "a"),
        (serdes.session_windowed(serdes.string()), ("a", 1, 2)),
        (serdes.time_windowed(serdes.string(), 10), {"key": "a", "start": 0, "end": 10}),
        (serdes.time_windowed(serdes.string(), 10), Windowed("a", cast(int, "0"), 10)),
        (serdes.session_windowed(serdes.string()), Windowed("a", 1, 1 << 63)),
    ],
)
def test_a_value_of_another_type_is_refused(serde: Serde, value: Any) -> None:
    with pytest.raises(SerdeError):
        serde.encode(value)


EVERYTHING = (
    "n bigint, s string, d decimal(20,2), b boolean, l array<int>, t timestamp, x double, i "
    "smallint, day date,"
    " raw binary, f float, m map<string, bigint>, o struct<p: string, q: array<struct<r: int>>>"
)
ROWS = [
    {
        "n": -(2**63),
        "s": "h\u00e9\n",
        "d": decimal.Decimal("-123456789012345678.25"),
        "b": True,
        "l": [1, None],
        "t": dt.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=dt.timezone.utc),
        "x": -0.5,
        "i": -3,
        "day": dt.date(1969, 12, 31),
        "raw": b"\x00\xff",
        "f": 1.5,
        "m": [("k", 1), ("null", None)],
        "o": {"p": None, "q": [{"r": 1}, {"r": None}]},
    },
    None,
    dict.fromkeys(["n", "s", "d", "b", "l", "t", "x", "i", "day", "raw", "f", "m", "o"]),
]


@pytest.mark.parametrize("make", [serdes.json, serdes.packed])
def test_structs_of_every_type_round_trip(make: Callable[[str], Serde]) -> None:
    serde = make(EVERYTHING)
    column = pa.array(ROWS * 3, serde.type)
    assert serde.decode_array(serde.encode_array(column)).equals(column)
    assert serde.decode_array(serde.encode_array(column)[2:5]).equals(column[2:5])
    assert serde.encode_array(column[2:]).equals(serde.encode_array(column)[2:])
    assert [serde.decode(serde.encode(row)) for row in ROWS] == ROWS
    assert pickle.loads(pickle.dumps(serde)) == serde
    assert hash(serde) == hash(make(EVERYTHING))


def test_the_packed_layout_is_the_documented_one() -> None:
    serde = serdes.packed("a int, s string, b boolean, d double")
    expected = bytes.fromhex("040000000100000002003ff00000000000007879")
    assert serde.encode({"a": 1, "s": "xy", "b": None, "d": 1.0}) == expected


def test_json_is_written_in_schema_order_and_read_forgivingly() -> None:
    serde = serdes.json("b string, a struct<c: int, d: int>")
    assert serde.encode({"a": {"d": 2, "c": 1}, "b": "x"}) == b'{"b":"x","a":{"c":1,"d":2}}'
    assert serde.decode(b' {"z": [1], "a": {"d": 5}} ') == {"b": None, "a": {"c": None, "d": 5}}
    assert serde.decode(b"null") is None


def test_json_decimals_keep_their_digits_and_doubles_beside_them_stay_doubles() -> None:
    serde = serdes.json("d decimal(38,10), x double")
    row = {"d": decimal.Decimal("1234567890123456789012345678.0123456789"), "x": 0.1}
    assert serde.encode(row) == b'{"d":1234567890123456789012345678.0123456789,"x":0.1}'
    assert serde.decode(serde.encode(row)) == row
    for bad in (b"\xff", b'{"x":NaN}', b'{"d":"abc"}', b'{"d":1e40}'):
        with pytest.raises(SerdeError):
            serde.decode(bad)


def test_json_timestamps_are_read_with_any_offset() -> None:
    serde = serdes.json("t timestamp")
    noon = dt.datetime(2024, 1, 31, 12, tzinfo=dt.timezone.utc)
    for text in (b"2024-01-31T12:00:00Z", b"2024-01-31T14:00:00+02:00", b"2024-01-31 12:00:00"):
        assert serde.decode(b'{"t":"' + text + b'"}') == {"t": noon}
    assert serde.encode({"t": noon}) == b'{"t":"2024-01-31T12:00:00.000000Z"}'


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("bigint", pa.int64()),
        ("decimal(12, 3)", pa.decimal128(12, 3)),
        ("array<map<string,decimal>>", pa.list_(pa.map_(pa.string(), pa.decimal128(10, 0)))),
        ("a int", pa.struct([("a", pa.int32())])),
        ("struct string", pa.struct([("struct", pa.string())])),
        (
            "a: INT NOT NULL COMMENT 'it''s', `b c` varchar(10)",
            pa.struct([("a", pa.int32()), ("b c", pa.string())]),
        ),
        (
            "t timestamp, u timestamp_ntz",
            pa.struct([("t", pa.timestamp("us", "UTC")), ("u", pa.timestamp("us"))]),
        ),
    ],
)
def test_ddl_is_read_as_spark_reads_it(text: str, type_: pa.DataType) -> None:
    if "''" in text:
        text = text.replace("it''s", "its")
    assert serdes.json(text).type == type_


@pytest.mark.parametrize(
    "text",
    ["", "a", "a strin", "a string,, b int", "a struct<b>", "a int b int", "a int, a int", "a ?"],
)
def test_a_schema_that_cannot_be_read_is_quoted(text: str) -> None:
    with pytest.raises(SerdeError, match="schema"):
        serdes.json(text)


def test_a_struct_type_of_spark_is_taken_without_importing_spark() -> None:
    schema = t.StructType(
        [
            t.StructField("a", t.LongType()),
            t.StructField("b", t.ArrayType(t.DecimalType(5, 2))),
            t.StructField("c", t.MapType(t.StringType(), t.TimestampType())),
        ]
    )
    assert serdes.json(schema) == serdes.json(
        "a bigint, b array<decimal(5,2)>, c map<string, timestamp>"
    )


def test_store_keys_of_windows_are_javas() -> None:
    keys = window_store_keys(pa.array([b"a", b""], pa.binary()), pa.array([5000, 0]).to_numpy())
    assert [key.hex() for key in keys.to_pylist()] == [
        "61000000000000138800000000",
        "000000000000000000000000",
    ]
    assert window_store_key(b"a", 5000) == keys.to_pylist()[0]
    assert split_window_store_key(window_store_key(b"a", 5000)) == (b"a", 5000)
    with pytest.raises(SerdeError):
        split_window_store_key(b"short")


def test_long_columns_are_sliced_whole() -> None:
    # Arrow's open-ended binary_slice asks for a negative buffer at this size
    serde = serdes.time_windowed(serdes.long(), 10)
    rows = pa.array(range(600_000), pa.int64())
    column = pa.StructArray.from_arrays(
        [rows, rows, pa.array(rows.to_numpy() + 10)], fields=list(serde.type)
    )
    assert serde.decode_array(serde.encode_array(column)).equals(column)


def test_a_window_ends_with_the_last_time_that_a_long_holds() -> None:
    serde = serdes.time_windowed(serdes.string(), 10)
    data = serde.encode(Windowed("k", 2**63 - 5, 2**63 - 1))
    assert serde.decode(data) == Windowed("k", 2**63 - 5, 2**63 - 1)
    column = serde.decode_array(pa.array([data], pa.binary()))
    assert column.to_pylist() == [{"key": "k", "start": 2**63 - 5, "end": 2**63 - 1}]
    with pytest.raises(SerdeError, match="long"):
        serde.encode(Windowed("k", 2**63, 2**63 + 10))


def test_fields_of_packed_values_and_entries_of_lists_are_named() -> None:
    packed = serdes.packed("n int, m map<int,int>")
    bad = serdes.packed("n int, m map<string,int>").encode({"n": 1, "m": {"x": 1}})
    with pytest.raises(SerdeError, match=r'^the field m: .*\["x"\]'):
        packed.decode(bad)
    listed = serdes.list_(serdes.json("a struct<b:int>"))
    bad = serdes.list_(serdes.json("a struct<b:string>")).encode([None, {"a": {"b": "x"}}])
    with pytest.raises(SerdeError, match=r"entry 1.*JSON.*a\.b"):
        listed.decode(bad)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("my-field int", "`my-field`"),
        ("a int, order.id bigint", "`order.id`"),
        ("@ts string", "`@ts`"),
        ("prix_\u00e9 int", "`prix_\u00e9`"),
        ("my field int", "`my field`"),
        ("o struct<a-b: int>", "`a-b`"),
        ("i interval day to second", "declare a bigint"),
        ("v variant", "declare a string"),
        ("t time(6)", "declare a string"),
        ("s string collate UTF8_LCASE", "collation"),
        ("d decimal(39,2)", "precision from 1 to 38"),
        ("d decimal(5,6)", "scale from 0"),
        ("d decimal(1_0,2)", "expected a number"),
        ("m map<void,int>", "cannot be void"),
        ("m map<map<int,int>,int>", r"map<.*declare"),
        ("o struct<m: map<struct<k: map<int,int>>,int>>", r"^o\.m is map<.*declare array"),
        ("a int, b struct<c: int, c: string>", r"b\.c appears twice"),
    ],
)
def test_a_schema_is_refused_with_the_place_and_the_cure(schema: str, says: str) -> None:
    for make in (serdes.json, serdes.packed, serdes.arrow_type):
        with pytest.raises(SerdeError, match=says):
            make(schema)


@pytest.mark.parametrize(
    "type_",
    [
        *(pa.uint8(), pa.uint64(), pa.float16(), pa.date64(), pa.time64("us"), pa.duration("us")),
        *(pa.month_day_nano_interval(), pa.decimal256(50, 2), pa.decimal128(5, -2)),
        *(pa.string_view(), pa.struct([("a", pa.int32()), ("a", pa.int32())])),
    ],
)
def test_an_arrow_type_that_no_serde_writes_is_refused_declared(type_: pa.DataType) -> None:
    for made in (serdes.json, lambda one: serdes.packed(pa.struct([("f", one)]))):
        with pytest.raises(SerdeError, match=r"declare|another name"):
            made(type_)


def test_a_struct_type_is_refused_as_ddl_is() -> None:
    twice = t.StructType([t.StructField("a", t.LongType()), t.StructField("a", t.LongType())])
    for schema in (twice, t.StructType([t.StructField("o", twice)])):
        with pytest.raises(SerdeError, match="appears twice"):
            serdes.json(schema)
    with pytest.raises(SerdeError, match="collation"):
        serdes.json(t.StructType([t.StructField("s", t.StringType("UTF8_LCASE"))]))


def test_a_value_that_cannot_be_written_is_named_with_its_place() -> None:
    far = pa.array([2**62], pa.int64()).view(pa.timestamp("us"))
    column = pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 1], far)], names=["l"])
    with pytest.raises(
        SerdeError,
        match=r"^cannot be written as JSON: l\[0\] \(timestamp_ntz\): .* years 1 to 9999",
    ):
        serdes.json(column.type).encode_array(column)
    with pytest.raises(SerdeError, match=r"map<.*\"1\" twice"):
        serdes.json("map<int,int>").encode([(1, 1), (1, 2)])


@pytest.mark.parametrize("serde", [serdes.long(), serdes.int_(), serdes.double()])
def test_a_number_of_a_schema_registry_is_told_as_that(serde: Any) -> None:
    data = b"\0" + (7).to_bytes(4, "big") + (serde.encode(1) or b"")
    with pytest.raises(SerdeError, match=r"registry.*7"):
        serde.decode(data)
    with pytest.raises(SerdeError, match=r"registry.*7") as told:
        serde.decode_array(pa.array([serde.encode(1), data]))
    assert told.value.index == 1


@pytest.mark.parametrize(
    ("type_", "told"),
    [
        (t.VariantType(), "variant"),
        (t.CalendarIntervalType(), "interval"),
        (t.DayTimeIntervalType(0, 3), "interval day to second"),
        (t.YearMonthIntervalType(), "interval year to month"),
    ],
)
def test_a_struct_with_what_no_serde_writes_names_the_field(type_: t.DataType, told: str) -> None:
    inner = t.StructType([t.StructField("ok", t.LongType()), t.StructField("odd name", type_)])
    for schema, place in (
        (t.StructType([t.StructField("a", type_)]), "a"),
        (t.StructType([t.StructField("a", inner)]), "a.`odd name`"),
        (t.StructType([t.StructField("a", t.ArrayType(inner))]), "a[].`odd name`"),
        (t.StructType([t.StructField("a", t.MapType(t.StringType(), inner))]), "a[].`odd name`"),
        (type_, "the schema"),
    ):
        with pytest.raises(SerdeError, match="declare a ") as caught:
            serdes.json(schema)
        assert str(caught.value).startswith(f"{place} is {told}"), str(caught.value)


@pytest.mark.parametrize(
    ("serde", "bad"),
    [
        (serdes.json("a bigint"), b"{"),
        (serdes.json("a bigint"), b'{"a": "x"}'),
        (serdes.long(), b"short"),
        (serdes.boolean(), b"\x07"),
        (serdes.string(), b"\xff"),
        (serdes.time_windowed(serdes.string(), 10), b"short"),
        (serdes.session_windowed(serdes.long()), b"short"),
        (serdes.packed(serdes.arrow_type("a bigint, b string, c array<int>")), b"\x01"),
        (serdes.packed(serdes.arrow_type("a array<bigint>")), b"\x01{"),
        (serdes.list_(serdes.long()), b"\x00\x00\x00\x00\x00\x00\x00\x09x"),
    ],
)
def test_no_error_of_a_value_tells_its_place_in_a_batch(serde: Any, bad: bytes) -> None:
    """Nobody can look there: whoever has the record says which it is."""
    with pytest.raises(SerdeError) as caught:
        serde.decode_array(pa.array([None, None, bad], pa.binary()))
    assert caught.value.index == 2
    assert not re.search(r"\brow \d", str(caught.value))


@dataclass(frozen=True)
class Point:
    """As a Java user writes one."""

    type = "x bigint, y bigint"

    def encode(self, value: dict[str, int]) -> bytes:
        return struct.pack(">qq", value["x"], value["y"])

    def decode(self, data: bytes) -> dict[str, int]:
        x, y = struct.unpack(">qq", data)
        return {"x": x, "y": y}


class NoType:
    def encode(self, value: Any) -> bytes:
        return b""


class JavaOnes:
    def serialize(self, value: Any) -> bytes:
        return b""


def test_values_and_columns_go_both_ways() -> None:
    serde = adopted(Point())
    column = pa.array([{"x": 1, "y": 2}, None, {"x": 3, "y": 4}], serde.type)
    data = serde.encode_array(column)
    assert data.type == pa.binary()
    assert serde.decode_array(data).equals(column)
    assert serde.decode_array(data[1:]).equals(column[1:])
    assert serde.decode(serde.encode({"x": 5, "y": 6})) == {"x": 5, "y": 6}
    assert (serde.encode(None), serde.decode(None)) == (None, None)
    assert adopted(Point()) == serde
    assert repr(serde) == "Point()"


def test_what_is_no_bytes_names_the_serde_and_its_row() -> None:
    class Dicts(Point):
        def encode(self, value: Any) -> Any:
            return value if value["x"] == 3 else super().encode(value)

    serde = adopted(Dicts())
    with pytest.raises(SerdeError, match=r"encode.*Dicts.*\{'x'.*3.*'y'.*4\}") as caught:
        serde.encode_array(pa.array([{"x": 1, "y": 2}, None, {"x": 3, "y": 4}], serde.type))
    assert caught.value.index == 2
    with pytest.raises(SerdeError, match="not bytes"):
        serde.encode({"x": 3, "y": 4})


def test_an_error_names_its_row() -> None:
    with pytest.raises(SerdeError, match=r"requires.*16") as caught:
        adopted(Point()).decode_array(pa.array([bytes(16), None, b"short", b"short"]))
    assert caught.value.index == 2

    class Wrong(Point):
        def decode(self, data: bytes) -> Any:
            return super().decode(data) if len(data) == 16 else "a text"

    with pytest.raises(SerdeError, match=r"decode gave 'a text', .*: .* .struct<") as caught:
        adopted(Wrong()).decode_array(pa.array([bytes(16), b"short"]))
    assert caught.value.index == 1


@pytest.mark.spark
def test_a_program_reads_and_writes_with_it() -> None:
    builder = StreamsBuilder()
    points = builder.stream("points", key=serdes.string(), value=Point())  # type: ignore[arg-type]
    turned = points.map_values(lambda p: {"x": p["y"], "y": p["x"]}, returns=Point())
    turned.group_by_key().reduce(lambda older, newer: newer, store="last").to_stream().to("turned")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("points", serdes.string(), Point()).pipe_input(  # type: ignore[arg-type]
            "a", {"x": 1, "y": 2}
        )
        assert driver.create_output_topic(
            "turned", serdes.string(), serdes.bytes_()
        ).read_value() == struct.pack(">qq", 2, 1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("string", r"key='string'.*serde.*serdes\.string"),
        ("a int", r"key='a int' .*serde; .*serdes\.json\('a int'\)"),
        (serdes.long, r"serde.*serdes\.long"),
        (Point, r"class.*object"),
        (NoType(), r"serde: .* lacks type, decode\. .* encode\(value\) ->"),
        (JavaOnes(), r"encode.*decode"),
        (7, r"key=7.*serde.*serdes\.string.*serdes\.json"),
    ],
)
def test_what_is_no_serde_is_told_how_to_be_one(given: Any, told: str) -> None:
    with pytest.raises(TopologyError, match=told):
        StreamsBuilder().stream("points", key=given)


def test_a_type_that_is_none_is_told() -> None:
    class Odd(Point):
        type = "x bigint, y no"

    with pytest.raises(TopologyError, match=r"stream.*value="):
        StreamsBuilder().stream("points", value=Odd())  # type: ignore[arg-type]


# Which Python values fit which type.

FittingPoint = namedtuple("FittingPoint", "x y")
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
    ("x int, y double", FittingPoint(1, 2), {"x": 1, "y": 2.0}),
    ("p struct<x: int, y: int>", {"p": FittingPoint(1, 2)}, {"p": {"x": 1, "y": 2}}),
    (
        "p array<struct<x: int, y: int>>",
        {"p": [FittingPoint(1, 2), None]},
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
    ("p struct<x: int, y: int>", {"p": FittingPoint(1, 2.5)}, r"p\.y .int.: .*an int, found"),
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
