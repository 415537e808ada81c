"""A schema registry as the serdes use it: the one for tests, and Apicurio's."""

import base64
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from contracts.apicurio import apicurio
from everflow import serdes
from everflow.errors import SchemaError
from everflow.serdes import SerdeError
from everflow.serdes.making import from_json, json_texts
from everflow.serdes.registered import bound_to
from everflow.serdes.registry import Registry
from everflow.testing.schema_registry import SchemaRegistry
from unit.serdes.test_protobuf_serde import ORDER, OTHER, SCHEMA, WHOLE

V1: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "amount", "type": "double"}],
}
V2 = {
    **V1,
    "fields": [*V1["fields"], {"name": "note", "type": ["null", "string"], "default": None}],
}
OTHER_TYPE = {**V1, "fields": [{"name": "id", "type": "string"}]}
VALUE = {"id": 1, "amount": 2.0}


@pytest.fixture(
    scope="module", params=["for tests", pytest.param("apicurio", marks=pytest.mark.slow)]
)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "apicurio":
        with apicurio(tmp_path_factory.mktemp("apicurio")) as found:
            yield found
    else:
        with SchemaRegistry() as registry:
            yield registry.url


def avro(url: str, schema: Any, topic: str, **more: Any) -> Any:
    return bound_to(serdes.avro(schema, registry=url, **more), topic, "value")


def test_a_schema_is_written_by_once_it_is_registered(url: str) -> None:
    with pytest.raises(SchemaError, match="first-value"):
        avro(url, V1, "first").encode(VALUE)
    data = avro(url, V1, "first", auto_register=True).encode(VALUE)
    assert (data[0], len(data)) == (0, 5 + 9)
    assert avro(url, V1, "first").encode(VALUE) == data
    assert avro(url, V1, "first").decode(data) == VALUE


def test_each_record_is_read_by_the_schema_that_wrote_it(url: str) -> None:
    old = avro(url, V1, "evolved", auto_register=True)
    new = avro(url, V2, "evolved", auto_register=True)
    written = [old.encode(VALUE), new.encode({**VALUE, "note": "x"})]
    assert written[0][:5] != written[1][:5]
    assert [old.decode(one) for one in written] == [VALUE, VALUE]
    assert [new.decode(one)["note"] for one in written] == [None, "x"]
    assert serdes.avro(subject="evolved-value", registry=url).type == new.type
    texts = ['{"id":1,"amount":2.0,"note":"x"}']
    assert json_texts(pa.array(written[1:2], pa.binary()), Registry.of(url)) == (texts, {})
    assert (
        from_json('{"id":1,"amount":2,"note":"x"}', "evolved-value", Registry.of(url)) == written[1]
    )


def test_what_the_registry_does_not_have_is_named(url: str) -> None:
    avro(url, V1, "named", auto_register=True).encode(VALUE)
    with pytest.raises(SchemaError, match=r"latest version is 1 .* id: "):
        avro(url, OTHER_TYPE, "named").encode({"id": "x"})
    with pytest.raises(SerdeError, match=r"schema 9999 .*404"):
        avro(url, V1, "named").decode(b"\0\0\0\x27\x0f\2")
    with pytest.raises(SchemaError, match="nothing-value"):
        serdes.avro(subject="nothing-value", registry=url)


def test_references_are_found(url: str) -> None:
    money = {"type": "fixed", "name": "shop.Money", "size": 2}
    more: dict[str, Any] = {"registry": url, "auto_register": True}
    serdes.avro(money, subject="money", **more).encode(b"ab")
    bill = {"type": "record", "name": "Bill", "fields": [{"name": "m", "type": "shop.Money"}]}
    named = [("shop.Money", "money", 1)]
    data = serdes.avro(bill, subject="bill", references=named, **more).encode({"m": b"ab"})
    assert serdes.avro(subject="bill", registry=url).decode(data) == {"m": b"ab"}


def test_protobuf_and_json_schema(url: str) -> None:
    serde = bound_to(serdes.protobuf(ORDER, registry=url, auto_register=True), "pb", "value")
    data = serde.encode(WHOLE)
    assert (data[0], data[5]) == (0, 0)
    latest = serdes.protobuf(registry=url, subject="pb-value")
    assert latest.type == serde.type
    assert latest.decode(data) == serde.decode(data) == WHOLE
    with pytest.raises(SerdeError, match=r"shop\.Order"):
        bound_to(serdes.protobuf(OTHER, registry=url), "pb", "value").decode(data)
    own = bound_to(serdes.json_schema(SCHEMA, registry=url, auto_register=True), "js", "value")
    value = {"id": 1, "at": None, "note": None, "tags": ["a"], "by": None, "prices": [("x", 1.0)]}
    data = own.encode(value)
    latest = serdes.json_schema(registry=url, subject="js-value")
    assert (latest.type, latest.decode(data)) == (own.type, value)


def registered(url: str, subject: str, text: str, kind: str) -> int:
    """Its id, as who registers it from CI gets it."""
    body = json.dumps({"schema": text, "schemaType": kind}).encode()
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    ask = urllib.request.Request(f"{url}/subjects/{subject}/versions", body, headers)
    with urllib.request.urlopen(ask, timeout=30) as answer:
        return int(json.load(answer)["id"])


SHOP = {**V1, "namespace": "shop", "doc": "What was bought.", "aliases": ["Bought"]}
WAYS = [
    pytest.param(V1, lambda schema: json.dumps(schema), id="blanks"),
    pytest.param(V1, lambda schema: json.dumps(schema, indent=2), id="lines"),
    pytest.param(SHOP, lambda schema: json.dumps(schema, sort_keys=True), id="order"),
    pytest.param(
        SHOP,
        lambda schema: json.dumps(
            {
                **{name: value for name, value in schema.items() if name != "namespace"},
                "name": "shop.Order",
                "aliases": ["shop.Bought"],
            }
        ),
        id="whole names",
    ),
    pytest.param({"type": "array", "items": {"type": "long"}}, lambda _: ARRAY, id="primitives"),
]
ARRAY = '{"items": "long", "type": "array"}'


@pytest.mark.parametrize(("schema", "written"), WAYS)
def test_a_schema_that_is_written_in_another_way_is_found(
    url: str, schema: Any, written: Any, request: pytest.FixtureRequest
) -> None:
    subject = f"{request.node.callspec.id}-avro".replace(" ", "-")
    wanted = registered(url, subject, written(schema), "AVRO")
    registered(url, subject, json.dumps({**V2, "name": "Newer"}), "AVRO")
    for register in (False, True):
        serde = serdes.avro(schema, registry=url, subject=subject, auto_register=register)
        assert (serde.version().id, serde.version().version) == (wanted, 1)


def test_a_json_schema_that_is_written_in_another_way_is_found(url: str) -> None:
    id_ = registered(url, "pretty-json", json.dumps(SCHEMA, indent=2, sort_keys=True), "JSON")
    assert serdes.json_schema(SCHEMA, registry=url, subject="pretty-json").version().id == id_


def test_a_protobuf_descriptor_that_is_written_in_another_way_is_found(url: str) -> None:
    file = descriptor_pb2.FileDescriptorProto()
    ORDER.DESCRIPTOR.file.CopyToProto(file)
    file.name = "default"
    file.source_code_info.location.add(leading_comments="What was bought.")
    for field in file.message_type[0].field:
        first, *others = field.name.split("_")
        field.json_name = first + "".join(map(str.capitalize, others))
    text = base64.standard_b64encode(file.SerializeToString()).decode()
    id_ = registered(url, "pretty-pb", text, "PROTOBUF")
    assert serdes.protobuf(ORDER, registry=url, subject="pretty-pb").version().id == id_


@pytest.mark.parametrize(
    "other",
    [
        {**SHOP, "doc": "What was sold."},
        {**SHOP, "namespace": "other"},
        {**SHOP, "fields": V1["fields"][::-1]},
        {**SHOP, "fields": [{**V1["fields"][0], "default": 0}, V1["fields"][1]]},
        {**SHOP, "fields": [{**V1["fields"][0], "aliases": ["key"]}, V1["fields"][1]]},
    ],
    ids=["doc", "namespace", "order", "default", "alias"],
)
def test_a_schema_that_says_something_else_is_another(
    url: str, other: Any, request: pytest.FixtureRequest
) -> None:
    subject = f"{request.node.callspec.id}-other".replace(" ", "-")
    registered(url, subject, json.dumps(other), "AVRO")
    with pytest.raises(SchemaError, match=rf"{subject}\b.* version is 1 "):
        serdes.avro(SHOP, registry=url, subject=subject).version()
