"""What the serdes of a schema registry share: rows by the schema they were written with, the
subject and the id that are written (note 069)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, is_dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from everflow.errors import SchemaError
from everflow.serdes.base import SerdeError, encode_one, flat
from everflow.serdes.byte_rows import Faults
from everflow.serdes.registry import MissingSchema, Registry, Schema, Version
from everflow.serdes.wire_format import SchemaId, groups, head_of

STRATEGIES = ("topic", "record", "topic-record")
"""TopicNameStrategy, RecordNameStrategy and TopicRecordNameStrategy of Kafka's serdes."""


@dataclass(frozen=True, repr=False)
class Registered:
    """Values of ``type`` in the format of a schema. Without a ``registry`` there is nothing in
    front of them, and ``schema`` is also what they were written with.

    ``topic``, ``part``: of the source or sink that has the serde (`bound_to`); two serdes that
    differ in these alone are equal: ids are the registry's, not the topic's.
    """

    schema: Schema
    type: pa.DataType
    registry: Registry | None = None
    subject: str | None = None
    strategy: str = "topic"
    auto_register: bool = False
    header_id: bool = False
    """A sink writes the id into a header; stores and internal topics have it before the value."""
    topic: str = field(default="", compare=False)
    part: str = field(default="value", compare=False)

    format: ClassVar[str]

    format_name: ClassVar[str]
    """In words."""

    @property
    def kind(self) -> str:
        return self.format_name.lower().replace(" ", "_")

    def __repr__(self) -> str:
        return f"{self.kind}({self.name or self.type})"

    # --- what a format says -----------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Of the record or message; empty where the schema has none."""
        raise NotImplementedError

    def _read(self, data: pa.Array, writer: Schema) -> tuple[pa.Array, Faults]:
        """A column of ``type``; SerdeError where no row of that writer can be read."""
        raise NotImplementedError

    def _write(self, values: pa.Array, head: bytes) -> pa.Array:
        """``pa.binary()`` with ``head`` before each value; null where there is none."""
        raise NotImplementedError

    def _indexes(self) -> tuple[int, ...]:
        return ()

    def _difference(self, other: Schema) -> str:
        """The first field in which the two schemas do not resolve; empty if there is none."""
        raise NotImplementedError

    def _meaning(self, schema: Schema) -> object:
        """Equal of two schemas that differ in how they are written alone. SerdeError."""
        return schema.form

    needs_writer: ClassVar[bool] = True
    """False where the values alone say how they are read."""

    # --- a serde ----------------------------------------------------------------------------------

    def encode(self, value: Any) -> bytes | None:
        return encode_one(self, value)

    def decode(self, data: bytes | None) -> Any:
        return self.decode_array(pa.array([data], pa.binary()))[0].as_py()

    def encode_array(self, values: pa.Array) -> pa.Array:
        """Raises SchemaError where the schema is not registered, RetriableError where the registry
        does not answer: both concern all values."""
        values = flat(values, self.type)
        if self.registry is None:
            return self._write(values, b"")
        return self._write(values, self.head() if values.null_count < len(values) else b"")

    def decode_array(self, data: pa.Array) -> pa.Array:
        column, faults = self.decode_marked(data)
        for index, error in faults.items():
            raise SerdeError(str(error), index=index) from error
        return column

    def decode_marked(self, data: pa.Array) -> tuple[pa.Array, Faults]:
        """As `decode_array`, with null for each row that cannot be read, and why by row, in order.
        RetriableError where the registry does not answer."""
        data = flat(data, pa.binary())
        there = np.flatnonzero(data.is_valid().to_numpy(zero_copy_only=False))
        present = data if len(there) == len(data) else data.drop_null()
        if self.registry is None:
            read = [(self._read_of(present, self.schema), np.arange(len(present)))]
            faults: Faults = {}
        else:
            found, faults = groups(present)
            read = [(self._of_group(one.schema, one.data), one.rows) for one in found]
        columns = [column for (column, _), _ in read]
        for (_, wrong), rows in read:
            faults.update((int(rows[row]), error) for row, error in wrong.items())
        owners = [rows for _, rows in read]
        if len(columns) == 1 and len(owners[0]) == len(data):
            return columns[0], dict(sorted(faults.items()))
        places = np.full(len(data), -1)
        total = 0
        for rows in owners:
            places[there[rows]] = np.arange(total, total + len(rows))
            total += len(rows)
        joined = pa.concat_arrays(columns) if columns else pa.nulls(0, self.type)
        column = joined.take(pa.array(places, mask=places < 0))
        return column, {int(there[row]): error for row, error in sorted(faults.items())}

    def _of_group(self, id_: SchemaId, data: pa.Array) -> tuple[pa.Array, Faults]:
        assert self.registry is not None
        if not self.needs_writer:
            return self._read_of(data, self.schema)
        try:
            writer = self.registry.schema(id_, self.format)
        except MissingSchema as error:
            return self._unread(data, f"schema {id_} is not there: {error}")
        return self._read_of(data, writer, f" (written with schema {id_})")

    def _read_of(self, data: pa.Array, writer: Schema, by: str = "") -> tuple[pa.Array, Faults]:
        try:
            column, faults = self._read(data, writer)
        except SerdeError as error:
            return self._unread(data, f"{error}{by}")
        return column, {row: SerdeError(f"{error}{by}") for row, error in faults.items()}

    def _unread(self, data: pa.Array, why: str) -> tuple[pa.Array, Faults]:
        error = SerdeError(why)
        return pa.nulls(len(data), self.type), dict.fromkeys(range(len(data)), error)

    # --- what is written --------------------------------------------------------------------------

    def subject_name(self) -> str:
        """SchemaError where the strategy needs a topic, or a name, that there is not."""
        if self.subject is not None:
            return self.subject
        if self.strategy != "record" and not self.topic:
            raise SchemaError(
                f"{self!r} is written to a topic that is not known when the program is built, so "
                f"there is no subject for its schema; give subject= or strategy='record'"
            )
        if self.strategy == "topic":
            return f"{self.topic}-{self.part}"
        if not self.name:
            raise SchemaError(
                f"strategy={self.strategy!r} takes a schema with a name; give subject="
            )
        return self.name if self.strategy == "record" else f"{self.topic}-{self.name}"

    def head(self) -> bytes:
        """What stands before each value. SchemaError, RetriableError."""
        return head_of(self.version().id, self._indexes())

    def header(self) -> bytes:
        """What stands in a header in place of `head`. SchemaError, RetriableError."""
        version = self.version()
        if version.guid is None:
            raise SchemaError(
                f"the schema registry at {self.registry} has given schema {version.id} no GUID, "
                f"which header_id=True writes; leave it out for the id before each value"
            )
        return head_of(version.guid, self._indexes())

    def version(self) -> Version:
        """The serde's schema under its subject, with ``id`` and ``version``; ``auto_register``
        registers it. Asked for once per process. SchemaError, RetriableError."""
        assert self.registry is not None
        return _version(self, self.subject_name(), os.getpid())

    def _found(self, subject: str) -> Version:
        assert self.registry is not None
        try:
            return self.registry.found(
                subject, self.schema, self._meaning, register=self.auto_register
            )
        except MissingSchema as missing:
            raise SchemaError(f"{missing}. {self._cure(subject)}") from missing
        except SchemaError as error:
            raise SchemaError(f"{error}. {self._cure(subject)}") from error

    def _cure(self, subject: str) -> str:
        assert self.registry is not None
        try:
            latest = self.registry.latest(subject, self.format)
        except MissingSchema:
            return (
                f"There is no subject {subject}: register the schema, or let it be registered by "
                f"auto_register=True"
            )
        known = f"Its latest version is {latest.version} (schema {latest.id})"
        difference = self._difference(latest.schema)
        if difference:
            return f"{known}, which does not fit the program's schema: {difference}"
        return f"{known}: register the program's schema as a further one, or leave schema= out"


@lru_cache(maxsize=1024)
def _version(serde: Registered, subject: str, process: int) -> Version:
    return serde._found(subject)


def warm_up(serde: Any) -> None:
    """Import and compile what a serde of a registry needs, so that the first record does not wait
    for it (a second and more). The registry is not asked."""
    found = getattr(serde, "inner", serde)
    if not isinstance(found, Registered):
        return
    if found.registry is not None:
        found.registry.connect()
    alone = replace(found, registry=None)
    alone.encode_array(alone.decode_array(pa.array([], pa.binary())))


def ask_schema(serde: Any) -> None:
    """Ask for the schema that ``serde`` writes by, as its first write does. One that
    ``auto_register`` registers with that write is not asked for. SchemaError, RetriableError."""
    found = getattr(serde, "inner", serde)
    if not isinstance(found, Registered) or found.registry is None or found.auto_register:
        return
    if found.header_id:
        found.header()
    else:
        found.head()


def in_headers(serde: Any) -> bool:
    """Whether a sink writes the id of its schema into a header."""
    return isinstance(serde, Registered) and serde.header_id and serde.registry is not None


def header_of(serde: Any) -> bytes:
    """`Registered.header` of a serde that is `in_headers`."""
    return bytes(serde.header())


def bare(serde: Any) -> Any:
    """As a sink writes it that has the id in a header."""
    return replace(serde, registry=None) if in_headers(serde) else serde


def in_front(serde: Any) -> Any:
    """As internal topics have it."""
    return replace(serde, header_id=False) if in_headers(serde) else serde


def bound_to(serde: Any, topic: object, part: str) -> Any:
    """``serde`` with the topic of its source or sink, from which its subject's name comes.
    ``topic``: no text where each record has its own; ``part``: ``key`` or ``value``."""
    if isinstance(serde, Registered):
        return replace(serde, topic=topic if isinstance(topic, str) else "", part=part)
    inner = getattr(serde, "inner", None)
    if inner is None or not is_dataclass(serde):
        return serde
    bound = bound_to(inner, topic, part)
    return serde if bound is inner else replace(serde, inner=bound)  # type: ignore[type-var]
