"""Avro and Protobuf in columns beside Java's own code, byte for byte (`bench/schemas`)."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from hypothesis import given
from hypothesis import strategies as st

from bench.schemas.peer import HEAD, JavaPeer, PeerError
from everflow.serdes import avro_reading, avro_writing, protobuf_reading, protobuf_writing
from everflow.serdes.avro_types import Avro, plain
from everflow.serdes.base import SerdeError
from everflow.serdes.protobuf_types import Part
from properties import test_avro_columns as avro
from properties import test_protobuf_columns as protobuf


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    with JavaPeer.started(tmp_path_factory.mktemp("classes")) as peer:
        yield peer


def _own_avro(data: list[bytes], writer: Avro, wanted: Avro) -> list[bytes | None]:
    column, faults = avro_reading.read_columns(pa.array(data, pa.binary()), writer, wanted)
    assert not faults
    written: list[bytes | None] = avro_writing.write_columns(column, wanted).to_pylist()
    return written


def _java_avro(java: JavaPeer, data: list[bytes], writer: Avro, wanted: Avro) -> list[bytes]:
    texts = [json.dumps(plain(one)) for one in (writer, wanted)]
    again = java.again("avro", texts[0], texts[1], [HEAD + one for one in data])
    return [one.removeprefix(HEAD) for one in again]


@given(case=avro.cases())
def test_avro_is_java_s(java: JavaPeer, case: tuple[Avro, list[Any]]) -> None:
    type_, rows = case
    data = [avro.fastavro_bytes(type_, one) for one in rows]
    found = _own_avro(data, type_, type_)
    for one, other in zip(found, _java_avro(java, data, type_, type_), strict=True):
        if one is not None and not avro.merges(type_):  # a null is no value of a topic
            assert one == other


@given(case=avro.cases(), data=st.data())
def test_a_later_schema_reads_what_java_s_does(
    java: JavaPeer, case: tuple[Avro, list[Any]], data: st.DataObject
) -> None:
    writer, rows = case
    wanted = data.draw(avro.evolved(writer))
    written = [avro.fastavro_bytes(writer, one) for one in rows]
    found = _own_avro(written, writer, wanted)
    for one, other in zip(found, _java_avro(java, written, writer, wanted), strict=True):
        if one is not None and not avro.merges(wanted):
            assert one == other


@given(case=protobuf.cases())
def test_protobuf_is_java_s(java: JavaPeer, case: tuple[Part, list[bytes]]) -> None:
    part, data = case
    head = HEAD + b"\0"
    column, faults = protobuf_reading.read_columns(
        pa.array(data, pa.binary()), part, protobuf_reading.message_reader(part)
    )
    assert not faults
    write = protobuf_writing.message_writer(part)
    written = protobuf_writing.write_columns(column, part, write).to_pylist()
    name, files = _files(part.make.DESCRIPTOR)
    again = java.again("protobuf", name, files, [head + one for one in written])
    assert [one.removeprefix(head) for one in again] == written


def _files(message: Any) -> tuple[str, str]:
    known: dict[str, bytes] = {}

    def add(file: Any) -> None:
        for one in file.dependencies:
            add(one)
        found = FileDescriptorProto()
        file.CopyToProto(found)
        known[file.name] = found.SerializeToString()

    add(message.file)
    listed = " ".join(base64.standard_b64encode(one).decode() for one in known.values())
    return message.name, listed


@given(case=avro.cases(), data=st.data())
def test_what_java_refuses_is_a_fault(
    java: JavaPeer, case: tuple[Avro, list[Any]], data: st.DataObject
) -> None:
    """But for bytes behind a value, which Java does not look at."""
    type_, rows = case
    broken = data.draw(avro.damaged(avro.fastavro_bytes(type_, rows[0])))
    try:
        _java_avro(java, [broken], type_, type_)
    except PeerError:
        _, faults = avro_reading.read_columns(pa.array([broken], pa.binary()), type_, type_)
        assert list(faults) == [0]
        assert isinstance(faults[0], SerdeError)
