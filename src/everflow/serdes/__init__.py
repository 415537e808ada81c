"""Serdes, which convert keys and values to bytes and back. Each serde has an Arrow type.

``serdes.string()``, ``serdes.long()``, ``serdes.json("carrier string, delay double")``, ...;
formats are Java's, so that topics and changelogs can be shared with Kafka Streams applications.
`base` defines a serde; `primitives`, `lists`, `json_serde`, `packed` and `windowed` are the kinds;
`schema` reads types from text, `arrow_types` checks Python values. `registered` is what the serdes
of a schema registry share (note 069): `avro_serde`, `protobuf_serde`, `json_schema_serde`;
`debezium_serde` is the one of change data (note 071).
May import layer 0, Arrow and orjson; `registry` alone asks anybody. Driver and workers run it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from everflow.foreign_names import telling
from everflow.serdes import lists, making
from everflow.serdes.avro_serde import AvroSerde
from everflow.serdes.base import Serde, SerdeError
from everflow.serdes.by_record import adopted, no_serde
from everflow.serdes.json_serde import JsonSerde
from everflow.serdes.packed import PackedSerde
from everflow.serdes.primitives import (
    BooleanSerde,
    BytesSerde,
    DoubleSerde,
    FloatSerde,
    IntegerSerde,
    StringSerde,
)
from everflow.serdes.registered import Registered
from everflow.serdes.schema import arrow_type
from everflow.serdes.windowed import SessionWindowedSerde, TimeWindowedSerde

__all__ = [
    "AvroSerde",
    "BooleanSerde",
    "BytesSerde",
    "DoubleSerde",
    "FloatSerde",
    "IntegerSerde",
    "JsonSerde",
    "PackedSerde",
    "Serde",
    "SerdeError",
    "SessionWindowedSerde",
    "StringSerde",
    "TimeWindowedSerde",
    "arrow_type",
    "avro",
    "boolean",
    "bytes_",
    "debezium",
    "double",
    "float_",
    "from_type",
    "int_",
    "json",
    "json_schema",
    "list_",
    "long",
    "packed",
    "protobuf",
    "session_windowed",
    "short",
    "string",
    "time_windowed",
]


def bytes_() -> Serde:
    """Bytes, unchanged; Arrow ``binary``."""
    return BytesSerde()


def string() -> Serde:
    """UTF-8 text; Arrow ``string``."""
    return StringSerde()


def boolean() -> Serde:
    """One byte, 1 or 0 (Java's BooleanSerializer); Arrow ``bool``."""
    return BooleanSerde()


def short() -> Serde:
    """2 bytes, big endian (Java's ShortSerializer); Arrow ``int16``."""
    return IntegerSerde("short", 16)


def int_() -> Serde:
    """4 bytes, big endian (Java's IntegerSerializer); Arrow ``int32``."""
    return IntegerSerde("int", 32)


def long() -> Serde:
    """8 bytes, big endian (Java's LongSerializer); Arrow ``int64``."""
    return IntegerSerde("long", 64)


def float_() -> Serde:
    """4 bytes, IEEE 754 big endian (Java's FloatSerializer); Arrow ``float``."""
    return FloatSerde()


def double() -> Serde:
    """8 bytes, IEEE 754 big endian (Java's DoubleSerializer); Arrow ``double``."""
    return DoubleSerde()


def list_(inner: Serde) -> Serde:
    """A list of values of ``inner`` (Java's ListSerializer, `Serdes.ListSerde`); Arrow ``list<T>``.
    Raises SerdeError if ``inner`` is no serde."""
    return lists.ListSerde(_inner("list_", inner, "entries"))


def json(schema: Any) -> Serde:
    """JSON text of the type ``schema``: Spark DDL text, a pyspark StructType, or an Arrow type.

    Raises SerdeError, which names the place in the text, if the schema cannot be read.
    """
    return JsonSerde(arrow_type(schema))


def avro(
    schema: str | Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    registry: str | Mapping[str, str] | None = None,
    subject: str | None = None,
    strategy: str = "topic",
    references: Sequence[tuple[str, str, int]] = (),
    auto_register: bool = False,
    header_id: bool = False,
) -> Registered:
    """Avro of ``schema``, its JSON as text or as Python values; None: the latest version of
    ``subject``, which is asked for now. ``version()`` of the serde looks the schema up under its
    subject, and registers it with ``auto_register``.

    ``registry``: its URL, or a dict of Kafka's settings (``schema.registry.url``,
    ``basic.auth.user.info``, ...); then the schema's id stands before each value, as Confluent's
    serializers write it, and records are read by the schema that they were written with. None: the
    values are bare. ``strategy``: of the subject's name, ``topic``, ``record`` or ``topic-record``.
    ``references``: (name, subject, version) of schemas that this one names. ``auto_register``:
    writes register a schema that is not there. ``header_id``: sinks write the schema's GUID into a
    header of the record, and the value bare (Kafka's ``HeaderSchemaIdSerializer``).

    Needs ``everflow[schemas]``. Raises SerdeError for a schema that is none, that contains itself,
    or with a type that no column has; ConfigError for a setting; SchemaError or RetriableError as
    the registry answers.
    """
    made = making.Asked.of(
        "AVRO", registry, subject, strategy, references, auto_register, header_id
    )
    return making.avro(schema, made)


def protobuf(
    message: Any = None,
    *,
    registry: str | Mapping[str, str] | None = None,
    subject: str | None = None,
    strategy: str = "topic",
    references: Sequence[tuple[str, str, int]] = (),
    auto_register: bool = False,
    header_id: bool = False,
) -> Registered:
    """Protobuf of ``message``: a class that protoc has generated, or the name of a message in the
    latest schema of ``subject`` (None: its first message), which is asked for now.

    The other arguments, what it needs and what it raises as in `avro`.
    """
    made = making.Asked.of(
        "PROTOBUF", registry, subject, strategy, references, auto_register, header_id
    )
    return making.protobuf(message, made)


def json_schema(
    schema: str | Mapping[str, Any] | None = None,
    *,
    registry: str | Mapping[str, str] | None = None,
    subject: str | None = None,
    strategy: str = "topic",
    references: Sequence[tuple[str, str, int]] = (),
    auto_register: bool = False,
    header_id: bool = False,
) -> Registered:
    """JSON of a JSON Schema, its text or a dict; None: the latest version of ``subject``, which is
    asked for now. Values are read and written as `json` does.

    The other arguments, what it needs and what it raises as in `avro`.
    """
    made = making.Asked.of(
        "JSON", registry, subject, strategy, references, auto_register, header_id
    )
    return making.json_schema(schema, made)


def debezium(
    columns: Any,
    *,
    form: str = "envelope",
    source: Any = None,
    registry: str | Mapping[str, str] | None = None,
    decimals: str | Mapping[str, str] | None = None,
    times: str | Mapping[str, str] | None = None,
) -> Serde:
    """Change data of Debezium, of a table with these ``columns`` (a schema as in `json`; others
    that the table has are not read).

    ``form``: ``envelope``, Debezium's own, or ``row``, which `ExtractNewRecordState` makes of it,
    and which keys have. `StreamsBuilder.stream` gives the envelope, ``struct<before, after, source,
    op, ts_ms>`` (``source`` with the fields that are named, ``"lsn bigint, table string"``);
    `StreamsBuilder.table` gives the rows, and deletes those that are deleted.

    Without ``registry``: JSON of Kafka Connect, with or without a schema in each record. With it:
    Avro, as in `avro`, which is read only. Where a record has a schema, that says how decimals and
    times are written. Where it has none, ``decimals`` does: ``precise`` (the default), ``string``,
    ``double``, or ``variable`` (a column without a scale), and ``times``: ``ms``, ``us``, ``ns`` or
    ``iso``; for all columns, or a dict by column. A timestamp that is a number needs it. JSON is
    written in this way, too.

    With ``registry`` it needs ``everflow[schemas]``. Raises SerdeError for what is no column or no
    such word; ConfigError for a setting of the registry.
    """
    return making.debezium(columns, form, source, registry, decimals, times)


def time_windowed(inner: Serde, size_ms: int) -> Serde:
    """Keys of windowed results (Java's TimeWindowedSerializer): the bytes of ``inner``, then the
    window start.

    Arrow ``struct<key: K, start: int64, end: int64>`` (ms). The end is not in the bytes, hence
    ``size_ms``. Raises SerdeError if ``inner`` is no serde or ``size_ms`` no size.
    """
    inner = _inner("time_windowed", inner)
    if not isinstance(size_ms, int) or size_ms < 1:
        raise SerdeError(
            f"time_windowed takes the size of the windows in ms, e.g. 3_600_000; found {size_ms!r}"
        )
    return TimeWindowedSerde(inner, size_ms)


def session_windowed(inner: Serde) -> Serde:
    """Keys of sessions (Java's SessionWindowedSerializer): the bytes of ``inner``, then the
    session's end and start.

    Arrow ``struct<key: K, start: int64, end: int64>`` (ms).
    """
    inner = _inner("session_windowed", inner)
    return SessionWindowedSerde(inner)


def _inner(name: str, inner: object, of: str = "keys") -> Serde:
    if no_serde(inner, __all__) is not None:
        raise SerdeError(
            f"{name} takes the serde of the {of}, e.g. serdes.string(); found {inner!r}"
        )
    return adopted(inner)


def packed(schema: Any) -> Serde:
    """A struct in everflow's compact binary format (`everflow.serdes.packed`); ``schema`` as in
    `json`."""
    return PackedSerde(arrow_type(schema))


def from_type(type_: pa.DataType) -> Serde:
    """The default serde of an Arrow type: Java's serde for string, int32, int64, double and binary;
    JSON for all others, including bool, int16, float and lists, for which Java has serdes."""
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return string()
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return bytes_()
    if type_ == pa.int32():
        return int_()
    if type_ == pa.int64():
        return long()
    if type_ == pa.float64():
        return double()
    return json(type_)


if not TYPE_CHECKING:  # a type checker knows the names
    __getattr__ = telling(__name__, lambda: __all__)
