"""A serde of the user's own: encode, decode and a type; what is none is told how."""

import struct
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from everflow import StreamsBuilder, TopologyError, serdes
from everflow.serdes import SerdeError
from everflow.serdes.by_record import adopted
from everflow.testing import TopologyTestDriver


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

    with pytest.raises(
        SerdeError, match=r"decode gave 'a text', which does not fit: the value .struct<"
    ) as caught:
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
        ("a int", r"key='a int' is not a serde; write for example serdes\.json\('a int'\)"),
        (serdes.long, r"serde.*serdes\.long"),
        (Point, r"class.*object"),
        (NoType(), r"is not a whole serde: it lacks type, decode\. It needs encode\(value\) ->"),
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
