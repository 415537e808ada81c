"""Avro with a registry: which schema is read and written, and whose fault what is."""

import json
import pickle
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import trustme

from everflow import serdes
from everflow.errors import ConfigError, RetriableError, SchemaError
from everflow.records import HEADERS
from everflow.serdes import SerdeError
from everflow.serdes.registered import bare, bound_to, in_front, in_headers, warm_up
from everflow.serdes.wire_format import with_header, with_ids, without_ids
from everflow.testing import wait_until
from everflow.testing.schema_registry import SchemaRegistry
from everflow.topology.store_layouts import serde_words
from unit.serdes.test_protobuf_serde import ORDER

V1 = {
    "type": "record",
    "name": "shop.Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "amount", "type": "double"}],
}
V2 = {
    **V1,
    "fields": [*V1["fields"], {"name": "note", "type": ["null", "string"], "default": None}],
}
OTHER = {**V1, "fields": [{"name": "id", "type": "long"}, {"name": "amount", "type": "string"}]}


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as found:
        yield found


def made(registry: SchemaRegistry, schema: Any = V1, **more: Any) -> Any:
    serde = serdes.avro(schema, registry=registry.url, **more)
    return bound_to(serde, "orders", "value")


def test_a_value_has_the_id_of_its_schema_in_front(registry: SchemaRegistry) -> None:
    id_ = registry.register("orders-value", V1)
    data = made(registry).encode({"id": 1, "amount": 2.5})
    assert data == b"\0" + id_.to_bytes(4, "big") + b"\x02" + struct.pack("<d", 2.5)
    assert made(registry).decode(data) == {"id": 1, "amount": 2.5}
    assert made(registry).encode(None) is None
    assert made(registry).decode(None) is None


def test_records_of_several_schemas_are_read_as_one(registry: SchemaRegistry) -> None:
    for one in (V1, V2):
        registry.register("orders-value", one)
    old, new = made(registry, V1), made(registry, V2)
    rows = [
        old.encode({"id": 1, "amount": 1.0}),
        None,
        new.encode({"id": 2, "amount": 2.0, "note": "x"}),
        old.encode({"id": 3, "amount": 3.0}),
    ]
    column = new.decode_array(pa.array(rows, pa.binary()))
    assert [one and one["note"] for one in column.to_pylist()] == [None, None, "x", None]
    assert [one and one["id"] for one in old.decode_array(pa.array(rows)).to_pylist()] == [
        1,
        None,
        2,
        3,
    ]
    assert registry.asked.count("GET /schemas/ids/1") == 1


def test_the_latest_schema_is_that_of_the_moment(registry: SchemaRegistry) -> None:
    registry.register("orders-value", V1)
    before = serdes.avro(registry=registry.url, subject="orders-value")
    registry.register("orders-value", V2)
    after = serdes.avro(registry=registry.url, subject="orders-value")
    assert [len(one.type) for one in (before, after)] == [2, 3]
    assert pickle.loads(pickle.dumps(before)) == before


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "empty"),
        (b"\0\0\0", "3 bytes"),
        (b'{"id": 1}', "123"),
        (b"\0\0\0\0\x63", "99"),
        (b"\0\0\0\0\x01\x02", "early"),
        (b"\0\0\0\0\x01\x02" + bytes(9), "1 bytes"),
        (b"\0\0\0\0\x02\x02\x02x", "amount"),
    ],
)
def test_a_record_that_does_not_fit_is_a_fault_of_its_own(
    registry: SchemaRegistry, data: bytes, word: str
) -> None:
    for one in (V1, OTHER):
        registry.register("orders-value", one)
    serde = made(registry)
    good = serde.encode({"id": 1, "amount": 2.5})
    column, faults = serde.decode_marked(pa.array([good, data, good], pa.binary()))
    assert list(faults) == [1]
    assert word in str(faults[1])
    assert [one is None for one in column.to_pylist()] == [False, True, False]
    with pytest.raises(SerdeError) as failed:
        serde.decode_array(pa.array([good, data], pa.binary()))
    assert failed.value.index == 1


def test_a_deleted_schema_is_a_fault_of_its_records(registry: SchemaRegistry) -> None:
    known, deleted = (registry.register("orders-value", one) for one in (V1, V2))
    serde = made(registry, V2)
    body = b"\x02" + struct.pack("<d", 2.5)
    rows = [b"\0" + known.to_bytes(4, "big") + body, b"\0" + deleted.to_bytes(4, "big") + body]
    assert serde.decode(rows[0])["id"] == 1
    for id_ in (known, deleted):
        registry.forget(id_)
    column, faults = serde.decode_marked(pa.array(rows))
    assert [one and one["id"] for one in column.to_pylist()] == [1, None], "one was known before"
    assert [list(faults), faults[1].code, "40403" in str(faults[1])] == [[1], "EF-SERDE", True]
    with pytest.raises(SchemaError, match="orders-value"):
        serde.encode({"id": 1, "amount": 2.5, "note": None})


@pytest.mark.parametrize("status", [401, 403, 408, 429, 500, 503])
def test_no_answer_is_an_outage(registry: SchemaRegistry, status: int) -> None:
    registry.register("orders-value", V1)
    serde = made(registry)
    data = serde.encode({"id": 1, "amount": 2.5})
    registry.fails = status
    other = made(registry, V1, subject="other", auto_register=True)
    with pytest.raises(RetriableError, match=str(status)):
        serdes.avro(registry=registry.url, subject="orders-value")
    with pytest.raises(RetriableError, match=str(status)):
        other.encode({"id": 1, "amount": 2.5})
    registry.fails = None
    assert serde.decode(data) == {"id": 1, "amount": 2.5}


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """The URL of a server that gives each request the same answer; without a body none."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if body:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Nothing: a test's output is its own."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b""),  # the connection is closed
        (200, b"<html>log in</html>"),
        (200, b"{}"),
        (200, b"[]"),
        (404, b"default backend - 404"),
        (404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}'),
        (502, b"Bad Gateway"),
    ],
)
def test_what_no_registry_answers_is_an_outage(status: int, body: bytes) -> None:
    """Of a proxy, for example: no record is at fault."""
    with answering(status, body) as url:
        serde = serdes.avro(V1, registry=url, subject="orders-value")
        with pytest.raises(RetriableError, match=url):
            serde.decode(b"\0\0\0\0\1\2")
        with pytest.raises(RetriableError, match=url):
            serdes.avro(registry=url, subject="orders-value")
        if body not in (b"{}", b"[]"):
            with pytest.raises(RetriableError, match=url):
                serde.encode({"id": 1, "amount": 2.5})


def test_an_answer_that_comes_slowly_is_waited_for(registry: SchemaRegistry) -> None:
    registry.register("orders-value", V1)
    serde = serdes.avro(V1, registry=registry.url, subject="orders-value")
    registry.silent.set()
    asked = len(registry.asked)
    found: list[Any] = []
    data = b"\0\0\0\0\1\x02" + struct.pack("<d", 2.5)
    reading = threading.Thread(target=lambda: found.append(serde.decode(data)))
    reading.start()
    wait_until(lambda: len(registry.asked) > asked, 10.0, "the registry to be asked")
    registry.silent.clear()
    reading.join(10.0)
    assert found == [{"id": 1, "amount": 2.5}]


def test_a_registry_that_hangs_or_is_gone_is_an_outage(registry: SchemaRegistry) -> None:
    registry.register("orders-value", V1)
    settings = {"schema.registry.url": registry.url, "request.timeout.ms": "200"}
    serde = serdes.avro(V1, registry=settings, subject="orders-value")
    registry.silent.set()
    with pytest.raises(RetriableError, match="not answer"):
        serde.encode({"id": 1, "amount": 2.5})
    registry.silent.clear()
    gone = serdes.avro(V1, registry="http://127.0.0.1:9", subject="orders-value")
    with pytest.raises(RetriableError, match="not answer"):
        gone.decode(b"\0\0\0\0\1\2")


def test_a_schema_is_registered_only_if_asked(registry: SchemaRegistry) -> None:
    with pytest.raises(SchemaError, match="orders-value") as failed:
        made(registry).encode({"id": 1, "amount": 2.5})
    assert "auto_register" in str(failed.value)
    assert made(registry, auto_register=True).encode({"id": 1, "amount": 2.5})[4] == 1


def test_what_is_not_compatible_names_the_field_and_the_version() -> None:
    with SchemaRegistry(compatible=lambda old, new: "" if old == new else "TYPE_MISMATCH") as found:
        id_ = found.register("orders-value", OTHER)
        for register in (False, True):
            with pytest.raises(SchemaError) as failed:
                made(found, auto_register=register).encode({"id": 1, "amount": 2.5})
            text = str(failed.value)
            assert failed.value.code == "EF-SCHEMA"
            assert "amount" in text
            assert f"version is 1 (schema {id_})" in text


@pytest.mark.parametrize(
    ("more", "subject"),
    [
        ({}, "orders-value"),
        ({"strategy": "record"}, "shop.Order"),
        ({"strategy": "topic-record"}, "orders-shop.Order"),
        ({"subject": "mine"}, "mine"),
    ],
)
def test_subjects_are_named_as_kafkas_serdes_name_them(
    registry: SchemaRegistry, more: dict[str, str], subject: str
) -> None:
    assert made(registry, **more).subject_name() == subject
    key = bound_to(serdes.time_windowed(serdes.avro(V1, registry=registry.url), 5), "t", "key")
    assert key.inner.subject_name() == "t-key"


def test_a_topic_that_is_not_known_takes_a_subject(registry: SchemaRegistry) -> None:
    serde = bound_to(serdes.avro(V1, registry=registry.url), lambda k, v: "t", "value")
    with pytest.raises(SchemaError, match="subject="):
        serde.encode({"id": 1, "amount": 2.5})


def test_serdes_of_two_topics_are_equal(registry: SchemaRegistry) -> None:
    serde = serdes.avro(V1, registry=registry.url)
    assert bound_to(serde, "a", "key") == bound_to(serde, "b", "value")


def test_ids_stand_in_headers_too(registry: SchemaRegistry) -> None:
    id_ = registry.register("orders-value", V1)
    serde = made(registry)
    whole = serde.encode({"id": 1, "amount": 2.5})
    guid = b"\1" + bytes.fromhex(registry.guid(id_).replace("-", ""))
    other = {"key": "a", "value": b"b"}
    headers = pa.array(
        [[other], [other, {"key": "__value_schema_id", "value": guid}], [], None], HEADERS
    )
    data = pa.array([whole, whole[5:], None, whole], pa.binary())
    assert serde.decode_array(with_header(data, headers, "value")).to_pylist() == [
        {"id": 1, "amount": 2.5},
        {"id": 1, "amount": 2.5},
        None,
        {"id": 1, "amount": 2.5},
    ]
    assert with_header(data, headers, "key").equals(data)
    without: Any = without_ids(headers, "value")
    assert [len(one or []) for one in without.to_pylist()] == [1, 1, 0, 0]
    assert without_ids(headers, "key") is headers
    named = with_ids(headers, "value", b"new", np.array([True, True, False, True]))
    own = {"key": "__value_schema_id", "value": b"new"}
    assert named.to_pylist() == [[other, own], [other, own], [], [own]]
    assert named.type == HEADERS


def test_what_the_first_record_needs_is_made_before_it_and_nothing_is_asked(
    registry: SchemaRegistry,
) -> None:
    fields = [
        {
            "name": "m",
            "type": {"type": "map", "values": ["null", {"type": "array", "items": "long"}]},
        },
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A"]}},
        {"name": "u", "type": ["string", "long", "null"]},
    ]
    schema = {"type": "record", "name": "All", "fields": fields}
    warm_up(serdes.time_windowed(serdes.avro(schema, registry=registry.url), 5))
    warm_up(serdes.protobuf(ORDER, registry=registry.url))
    warm_up(serdes.json_schema({"type": "string"}, registry=registry.url))
    warm_up(serdes.string())
    assert registry.asked == []


def test_an_id_in_a_header_is_of_a_sink_alone(registry: SchemaRegistry) -> None:
    registry.register("orders-value", V1)
    serde = bound_to(serdes.avro(V1, registry=registry.url, header_id=True), "orders", "value")
    value = {"id": 1, "amount": 2.5}
    assert serde.encode(value) == serde.head() + bare(serde).encode(value)
    assert (in_headers(serde), in_headers(in_front(serde))) == (True, False)
    assert serde.header() == b"\1" + bytes.fromhex(registry.guid(1).replace("-", ""))
    with pytest.raises(ConfigError, match="header_id"):
        serdes.avro(V1, header_id=True)


def test_references_are_read_with_the_schema(registry: SchemaRegistry) -> None:
    money = {"type": "fixed", "name": "shop.Money", "size": 2}
    registry.register("money", money)
    schema = {"type": "record", "name": "R", "fields": [{"name": "m", "type": "shop.Money"}]}
    reference = [("shop.Money", "money", 1)]
    serde = serdes.avro(
        schema, registry=registry.url, subject="r", references=reference, auto_register=True
    )
    data = serde.encode({"m": b"ab"})
    assert data == b"\0\0\0\0\2ab"
    latest = serdes.avro(registry=registry.url, subject="r")
    assert latest.decode(data) == {"m": b"ab"}


def test_basic_auth_is_kafkas_setting() -> None:
    with SchemaRegistry(user="me:secret") as found:
        found.register("orders-value", V1)
        settings = {"schema.registry.url": found.url, "basic.auth.user.info": "me:secret"}
        serde: Any = serdes.avro(registry=settings, subject="orders-value")
        assert len(serde.type) == 2
        assert "secret" not in repr(serde) + repr(serde.registry)
        with pytest.raises(RetriableError, match="401"):
            serdes.avro(registry=found.url, subject="orders-value")


def test_certificates_are_kafkas_settings(tmp_path: Path) -> None:
    ca = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert("127.0.0.1").configure_cert(tls)
    ca.configure_trust(tls)
    tls.verify_mode = ssl.CERT_REQUIRED
    trusted, own = str(tmp_path / "ca.pem"), str(tmp_path / "own.pem")
    ca.cert_pem.write_to_path(trusted)
    ca.issue_cert("me@example.org").private_key_and_cert_chain_pem.write_to_path(own)
    with SchemaRegistry(tls=tls) as found:
        found.register("orders-value", V1)
        some = {
            "schema.registry.url": found.url,
            "schema.registry.ssl.truststore.location": trusted,
        }
        whole = {**some, "schema.registry.ssl.keystore.location": own}
        assert len(serdes.avro(registry=whole, subject="orders-value").type) == 2
        for settings in (some, {"schema.registry.url": found.url}):
            with pytest.raises(RetriableError, match="not answer"):
                serdes.avro(registry=settings, subject="orders-value")


def test_a_bearer_token_is_kafkas_setting() -> None:
    with SchemaRegistry(user="tok") as found:
        found.register("orders-value", V1)
        settings = {
            "schema.registry.url": found.url,
            "bearer.auth.credentials.source": "STATIC_TOKEN",
            "bearer.auth.token": "tok",
        }
        assert len(serdes.avro(registry=settings, subject="orders-value").type) == 2


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({}, "schema.registry.url"),
        ({"schema.registry.url": "http://x", "basic.auth.user": "a"}, "basic.auth.user.info"),
        ({"schema.registry.url": "http://x", "request.timeout.ms": "no"}, "request.timeout.ms"),
        (
            {
                "schema.registry.url": "http://x",
                "schema.registry.ssl.truststore.location": "a.jks",
                "schema.registry.ssl.truststore.type": "JKS",
            },
            "PEM",
        ),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, str], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        serdes.avro(V1, registry=settings)


def test_without_a_registry_values_are_bare() -> None:
    serde = serdes.avro(json.dumps(V1))
    assert serde.encode({"id": 1, "amount": 2.5}) == b"\x02" + struct.pack("<d", 2.5)


RECURSIVE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"]}],
}


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        (RECURSIVE, "next .*contains itself"),
        ("nonsense", "JSON"),
        ({"type": "record", "name": "R", "fields": [{"name": "f", "type": "lng"}]}, "f .*lng"),
        ({"type": "array", "items": "null"}, "no bytes"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2}, "38"),
        ("[" * 1500, "JSON|deep"),
    ],
)
def test_a_schema_that_no_column_has_is_refused_when_it_is_given(schema: Any, word: str) -> None:
    with pytest.raises(SerdeError, match=word):
        serdes.avro(schema)


def test_a_schema_of_a_megabyte_is_read() -> None:
    fields = [{"name": f"f{at}", "type": "long", "doc": "x" * 1000} for at in range(1000)]
    serde = serdes.avro({"type": "record", "name": "R", "fields": fields})
    assert serde.decode(serde.encode({f"f{at}": at for at in range(1000)}))["f999"] == 999


def test_a_record_whose_schema_no_column_has_is_a_fault_of_its_own(
    registry: SchemaRegistry,
) -> None:
    """Somebody else's: recursive, broken, or of another format."""
    fields = [{"name": "id", "type": "long"}, {"name": "amount", "type": ["null", "shop.Order"]}]
    recursive = registry.register("orders-value", {**V1, "fields": fields})
    broken = registry.register("orders-value", '"lng"')
    other = registry.register("orders-value", {"type": "string"}, "JSON")
    good = registry.register("orders-value", V1)
    body = b"\x02" + struct.pack("<d", 2.5)
    rows = [b"\0" + id_.to_bytes(4, "big") + body for id_ in (recursive, broken, other, good)]
    column, faults = made(registry).decode_marked(pa.array(rows))
    assert column.to_pylist() == [None, None, None, {"id": 1, "amount": 2.5}]
    words = ("contains itself", "lng", "JSON")
    assert [word in str(faults[row]) for row, word in enumerate(words)] == [True] * 3
    assert {one.code for one in faults.values()} == {"EF-SERDE"}


def test_records_of_a_schema_of_a_megabyte_are_read(registry: SchemaRegistry) -> None:
    more = [
        {"name": f"f{at}", "type": "long", "default": at, "doc": "x" * 1000} for at in range(1000)
    ]
    large = {**V1, "fields": [*V1["fields"], *more]}
    old, new = made(registry, V1, auto_register=True), made(registry, large, auto_register=True)
    value = {"id": 1, "amount": 2.5}
    found = new.decode(old.encode(value))
    assert found == {**value, **{f"f{at}": at for at in range(1000)}}
    assert old.decode(new.encode(found)) == value


@pytest.mark.parametrize("head", [b"", b"\1", b"\1" + bytes(15), b"\0\0\0", b"\7" + bytes(16)])
def test_an_id_that_is_cut_in_a_header_is_a_fault(registry: SchemaRegistry, head: bytes) -> None:
    registry.register("orders-value", V1)
    headers = pa.array([[{"key": "__value_schema_id", "value": head}]], HEADERS)
    _, faults = made(registry).decode_marked(with_header(pa.array([b"\2"]), headers, "value"))
    assert list(faults) == [0]
    assert faults[0].code == "EF-SERDE"


@pytest.mark.parametrize(
    ("type_", "value", "word"),
    [
        ("long", None, "v: null"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", "v: .*symbols"),
        ({"type": "fixed", "name": "F", "size": 2}, b"abc", "v: .*2 bytes"),
    ],
)
def test_a_value_without_a_place_in_the_schema_names_its_field(
    type_: Any, value: Any, word: str
) -> None:
    serde = serdes.avro({"type": "record", "name": "R", "fields": [{"name": "v", "type": type_}]})
    good = {"long": 1}.get(str(type_), "A" if "enum" in str(type_) else b"ab")
    with pytest.raises(SerdeError, match=word) as failed:
        serde.encode_array(pa.array([{"v": good}, None, {"v": value}], serde.type))
    assert failed.value.index == 2


def test_the_words_of_a_store_change_with_its_schema() -> None:
    old, new, said = (serdes.avro(one) for one in (V1, V2, {**V1, "doc": "of a shop"}))
    assert serde_words(old) == "amount double, id bigint as Avro"
    assert serde_words(new) == "amount double, id bigint, note string as Avro"
    assert serde_words(old) == serde_words(said)
    assert serde_words(old, key=True) != serde_words(said, key=True)  # it has another id
    spaced = serdes.avro(json.dumps(dict(reversed(V1.items())), indent=2))
    assert serde_words(old, key=True) == serde_words(spaced, key=True)
