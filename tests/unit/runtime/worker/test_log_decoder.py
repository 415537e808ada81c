"""Decoding the records of the log: the same for every road."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from everflow import serdes
from everflow.errors import RetriableError
from everflow.records import EdgeBatch
from everflow.runtime.worker.log_decoder import decoded_records
from everflow.runtime.worker.set_aside import Judge
from everflow.serdes import Serde
from everflow.serdes.by_record import adopted
from everflow.topology.plan import Source
from unit.builders import edge_batch
from unit.builders import source as made_source
from unit.runtime.own_serde import OwnSerde


def reading(value: Serde) -> Source:
    return made_source("in", value=value)


def batch(keys: list[bytes | None], values: list[bytes | None]) -> EdgeBatch:
    return edge_batch(keys, values, pa.binary(), pa.binary(), partition=3, offset=40)


def pairs(found: EdgeBatch) -> list[tuple[Any, Any]]:
    return list(zip(found.key.to_pylist(), found.value.to_pylist(), strict=True))


def test_text_that_is_no_utf8_gets_replacement_characters() -> None:
    good, bad = decoded_records(reading(serdes.string()), batch([b"\xffk"], [b"\xe4"]), Judge())
    assert (pairs(good), len(bad)) == ([("\ufffdk", "\ufffd")], 0)


def test_a_key_and_a_value_that_cannot_be_decoded_are_one_dead_letter() -> None:
    source = reading(serdes.json("a bigint"))
    good, bad = decoded_records(source, batch([b"k", b"l"], [b"{broken", b'{"a": 1}']), Judge())
    assert pairs(good) == [("l", {"a": 1})]
    assert (bad.key.to_pylist(), bad.value[0]["value"].as_py()) == ([b"k"], b"{broken")


def test_a_serde_that_decodes_to_another_type_is_named_with_the_record() -> None:
    source = reading(adopted(Digits()))
    good, bad = decoded_records(source, batch([b"a", b"b", b"c"], [b"1", b"x", b"3"]), Judge())
    assert pairs(good) == [("a", 1), ("c", 3)]
    assert (
        bad.value.to_pylist()[0]["error"]
        == "value is not a valid Digits(): the value (int): expected an int, found str 'x'"
    )


class Halves:
    """Refuses all, in a text that is no UTF-8."""

    type = "int"

    def decode(self, data: bytes) -> int:
        raise serdes.SerdeError("half of a pair: \ud83d")

    def encode(self, value: int) -> bytes:
        return b""


def test_what_a_serde_says_that_is_no_utf8_can_be_written() -> None:
    good, bad = decoded_records(reading(adopted(Halves())), batch([b"a"], [b"1"]), Judge())
    assert len(good) == 0
    assert bad.value.to_pylist()[0]["error"].endswith(r"half of a pair: \ud83d")


class Digits:
    type = "int"

    def decode(self, data: bytes) -> int | str:
        return int(data) if data.isdigit() else data.decode()

    def encode(self, value: int) -> bytes:
        return str(value).encode()

    def __repr__(self) -> str:
        return "Digits()"


def test_records_that_cannot_be_decoded_keep_their_bytes() -> None:
    source = reading(serdes.long())
    one = (1).to_bytes(8, "big")
    good, bad = decoded_records(
        source, batch([b"a", b"b", None, b"d"], [one, b"\x01", b"", None]), Judge()
    )
    assert pairs(good) == [("a", 1), ("d", None)]
    assert bad.offset.tolist() == [41, 42]
    assert bad.key.to_pylist() == [b"b", None]
    assert [value["value"] for value in bad.value.to_pylist()] == [b"\x01", b""]
    assert all("value is not a valid" in value["error"] for value in bad.value.to_pylist())
    assert decoded_records(source, batch([], []), Judge())[1].offset.tolist() == []


def test_bytes_that_a_serde_of_the_user_does_not_take_are_a_dead_letter() -> None:
    source = reading(OwnSerde())
    good, bad = decoded_records(source, batch([b"x", b"y", b"z"], [b"a", b"b", None]), Judge())
    assert pairs(good) == [("x", "A"), ("z", None)]
    assert bad.offset.tolist() == [41]
    assert bad.value.to_pylist()[0]["error"] == "value is not a valid own(): KeyError: b'b'"


@pytest.mark.parametrize(
    "error", [SystemExit("leave"), GeneratorExit("leave"), ValueError("leave")]
)
def test_whatever_a_serde_of_the_user_raises_is_of_that_record(error: BaseException) -> None:
    class Raising(OwnSerde):
        def decode(self, data: bytes | None) -> str | None:
            if data == b"b":
                raise error
            return super().decode(data)

    records = batch([b"x", b"y"], [b"a", b"b"])
    good, bad = decoded_records(reading(Raising()), records, Judge())
    assert pairs(good) == [("x", "A")]
    assert f"{type(error).__name__}: leave" in bad.value.to_pylist()[0]["error"]


def test_an_outage_of_what_a_serde_asks_is_no_dead_letter() -> None:
    class Registry(OwnSerde):
        def decode(self, data: bytes | None) -> str | None:
            raise RetriableError("the registry does not answer")

    with pytest.raises(RetriableError, match="registry"):
        decoded_records(reading(Registry()), batch([b"x"], [b"a"]), Judge())


def test_json_that_does_not_fit_is_told_by_its_place_and_not_by_the_whole_schema() -> None:
    schema = "before struct<amount:double>, after struct<items:array<struct<price:double>>>"
    source = reading(serdes.json(schema))
    value = b'{"after":{"items":[{"price":1},{"price":"12,50"}]}}'
    good, bad = decoded_records(source, batch([b"a", b"b"], [value, b"{}"]), Judge())
    assert len(good) == 1
    error = bad.value.to_pylist()[0]["error"]
    assert 'after.items[1].price (double): expected a number, found "12,50"' in error
    assert "before" not in error


def test_a_structs_key_is_told_by_its_place() -> None:
    source = replace(reading(serdes.string()), key_serde=serdes.json("o struct<at:timestamp>"))
    _, bad = decoded_records(source, batch([b'{"o":{"at":1706702400000}}'], [b"x"]), Judge())
    error = bad.value.to_pylist()[0]["error"]
    assert error.startswith("key is not a valid json: JSON that does not fit: o.at (timestamp):")
    assert "found 1706702400000" in error
    assert "declare a bigint" in error


def test_a_registrys_head_is_recognised() -> None:
    source = reading(serdes.json("a int"))
    _, bad = decoded_records(source, batch([b"k"], [b'\x00\x00\x00\x00\x07{"a":1}']), Judge())
    assert "schema id 7" in bad.value.to_pylist()[0]["error"]
