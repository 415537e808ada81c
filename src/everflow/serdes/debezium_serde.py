"""The serde of Debezium's change data: envelopes, rows and keys, in JSON or in Avro (note 071)."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from everflow.errors import SchemaError
from everflow.records import Int64
from everflow.serdes.arrow_types import holds
from everflow.serdes.avro_reading import read_columns
from everflow.serdes.avro_types import Avro, branches, parsed
from everflow.serdes.base import SerdeError
from everflow.serdes.byte_rows import Faults, Flags
from everflow.serdes.connect_columns import declared, written
from everflow.serdes.connect_types import (
    NOT_SAID,
    Connect,
    Form,
    Said,
    avro_schema,
    connect_schema,
    form_of,
    is_plain,
    plain_text,
)
from everflow.serdes.json_serde import JsonSerde
from everflow.serdes.registered import Registered
from everflow.serdes.registry import Schema

ENVELOPE, ROW = "envelope", "row"
UNAVAILABLE = "__debezium_unavailable_value"
"""Of a value that PostgreSQL keeps elsewhere (TOAST), which an update did not change."""
NO_COLUMNS = pa.struct([])
NOTHING_SAID = Said()
_DELETED = "__deleted"
_WITH_ROWS, _OPS = ("r", "c", "u"), ("r", "c", "u", "d", "t", "m")
_SCHEMA, _PAYLOAD = b'{"schema":', b',"payload":'
_ODD = r'^\s*\{\s*"(schema|payload)"\s*:'
"""Of a record that may have its schema in another form."""
_MOST_SCHEMAS = 64
"""Of a batch: behind so many, records are taken apart one by one."""
NO_KEY = (
    "a change without a key: which row it changes, it does not say. The table has no primary key: "
    "give it one, or name its columns by message.key.columns in the connector"
)


@dataclass(frozen=True, repr=False)
class DebeziumSerde(Registered):
    """Changes of a table whose columns are ``columns``. ``shape``: `ENVELOPE` or `ROW`; ``table``:
    read as a table's source does, a row, or null for a deletion."""

    columns: pa.DataType = NO_COLUMNS
    shape: str = ENVELOPE
    said: Said = NOTHING_SAID
    table: bool = False
    completes: bool = False
    """The table fills in what an update lacks (`lacking`); else it is a bad record."""

    format: ClassVar[str] = "AVRO"
    format_name: ClassVar[str] = "Debezium"

    @property
    def name(self) -> str:
        return ""

    def _difference(self, other: Schema) -> str:
        return ""

    def __repr__(self) -> str:
        return f"debezium({self.columns})"

    @property
    def asked(self) -> pa.DataType:
        """What is read of each value."""
        if self.shape == ENVELOPE:
            row = [("after", self.columns), ("op", pa.string())]
            return pa.struct(row) if self.table else self.type
        if self.table and self.columns.get_field_index(_DELETED) < 0:
            return pa.struct([*self.columns, (_DELETED, pa.string())])
        return self.columns

    def encode_array(self, values: pa.Array) -> pa.Array:
        if self.registry is not None:
            raise SchemaError(reads_only(self))
        return super().encode_array(values)

    def _write(self, values: pa.Array, head: bytes) -> pa.Array:
        raw = written(values, self._form(self.type, None))
        return JsonSerde(raw.type).encode_array(raw)

    def _read(self, data: pa.Array, writer: Schema) -> tuple[pa.Array, Faults]:
        in_avro = self.registry is not None
        found, faults = self._of_avro(data, writer) if in_avro else self._of_json(data)
        if self.shape == ENVELOPE:
            _judge_envelopes(found, faults)
        made = self._row_or_deletion(found, faults) if self.table else found
        if not faults:
            return made, faults
        wrong = np.zeros(len(data), bool)
        wrong[list(faults)] = True
        return made.take(pa.array(np.arange(len(data)), mask=wrong)), dict(sorted(faults.items()))

    # --- bytes to columns -------------------------------------------------------------------------

    def _of_avro(self, data: pa.Array, writer: Schema) -> tuple[pa.Array, Faults]:
        connect, text = avro_schema(writer.text, tuple(one for _, one in writer.resolved))
        references = tuple(plain_text(one) for _, one in writer.resolved)
        whole = parsed(text, references)
        if whole.kind != "record":
            raise SerdeError(f"it was written as {whole}, which is no row and no envelope")
        raw, faults = read_columns(data, whole, narrowed(whole, self.asked))
        return self._declared(raw, faults, self._form(self.asked, connect, NOTHING_SAID))

    def _of_json(self, data: pa.Array) -> tuple[pa.Array, Faults]:
        parts = list(payloads(data))
        read = [self._of_payloads(one) for one in parts]
        if len(parts) == 1:
            return read[0]
        columns = [column for column, _ in read] or [pa.nulls(0, self.asked)]
        places = np.empty(len(data), np.int64)
        rows = np.concatenate([one.rows for one in parts]) if parts else np.zeros(0, np.int64)
        places[rows] = np.arange(len(data))
        faults = {
            int(one.rows[row]): error
            for one, (_, wrong) in zip(parts, read, strict=True)
            for row, error in wrong.items()
        }
        return pa.concat_arrays(columns).take(pa.array(places)), faults

    def _of_payloads(self, part: Payloads) -> tuple[pa.Array, Faults]:
        try:
            schema = None if part.schema is None else _connect_of(part.schema)
        except SerdeError as error:
            return pa.nulls(len(part.data), self.asked), dict.fromkeys(range(len(part.data)), error)
        form = self._form(self.asked, schema)
        raw, faults = JsonSerde(form.json_type).decode_marked(part.data)
        column, faults = self._declared(raw, dict(faults), form)
        if schema is None and holds(self.columns, _needs_words):
            faults = {row: _hinted(error) for row, error in faults.items()}
        return column, faults

    def _form(self, type_: pa.DataType, schema: Connect | None, said: Said | None = None) -> Form:
        words = self.said if said is None else said
        if self.shape == ROW:
            return form_of(type_, schema, words)
        inner = (None if schema is None else schema.field(one.name) or NOT_SAID for one in type_)
        both = zip(type_, inner, strict=True)
        return Form(type_, parts=tuple(form_of(one.type, of, words) for one, of in both))

    def _declared(self, raw: pa.Array, faults: Faults, form: Form) -> tuple[pa.Array, Faults]:
        column, unfit = declared(raw, form)
        return column, {**unfit, **faults}

    # --- what a table makes of them ---------------------------------------------------------------

    def _row_or_deletion(self, found: pa.Array, faults: Faults) -> pa.Array:
        if self.shape == ROW:
            deleted = pc.struct_field(found, _DELETED).cast(pa.string())
            there = _flags(pc.not_equal(deleted, "true"), True)
            rows = found if found.type == self.columns else _fields_of(found, self.columns)
        else:
            ops = pc.struct_field(found, "op")
            there = _flags(pc.is_in(ops, pa.array(_WITH_ROWS)), False)
            other = _flags(pc.is_in(ops, pa.array(("t", "m"))), False)
            for row in np.flatnonzero(other).tolist():
                faults.setdefault(row, SerdeError(_NO_ROW[ops[row].as_py()]))
            rows = pc.struct_field(found, "after")
        rows = rows.take(pa.array(np.arange(len(rows)), mask=~there))
        kept = np.full(len(rows), self.completes)
        if self.shape == ENVELOPE:  # of a row that begins, nothing is there to be kept
            kept &= _flags(pc.equal(pc.struct_field(found, "op"), "u"), False)
        _judge_rows(rows, kept, faults)
        return rows


_NO_ROW = {
    "t": (
        "a truncate, in one partition of the topic: the table's other partitions do not see it, so "
        "its rows stay. Delete rows by DELETE, and leave truncates out by skipped.operations=t; "
        "after a truncate the table begins anew, by everflow reset and a new snapshot"
    ),
    "m": "a message of the database's log, which is no change of a row",
}


def envelope_type(columns: pa.DataType, source: pa.DataType | None = None) -> pa.DataType:
    fields = [("before", columns), ("after", columns)]
    if source is not None:
        fields.append(("source", source))
    return pa.struct([*fields, ("op", pa.string()), ("ts_ms", pa.int64())])


def of_a_table(serde: Any, *, completes: bool = False) -> Any:
    """As the source of a table reads it; ``completes``: as of `DebeziumSerde`."""
    if not isinstance(serde, DebeziumSerde) or serde.table:
        return serde
    return replace(serde, table=True, type=serde.columns, completes=completes)


def behind(serde: Any) -> Any:
    """As stores and topics behind a source have what it reads. What Debezium writes as all JSON is
    written by that serde, so that keys meet those of other streams."""
    if not isinstance(serde, DebeziumSerde):
        return serde
    as_json = serde.shape == ROW and is_plain(form_of(serde.type, None, serde.said))
    if serde.table or serde.registry is not None or as_json:
        return JsonSerde(serde.type)
    return serde


def reads_only(serde: Any) -> str:
    """Why nothing is written by ``serde``; empty where it writes."""
    if not isinstance(serde, DebeziumSerde) or serde.registry is None:
        return ""
    return (
        f"{serde!r} with registry= reads Avro, and writes none; write rows by serdes.avro(...), or "
        f"changes as JSON by serdes.debezium(...) without registry="
    )


def no_key(serde: Any) -> str:
    """Why ``serde`` is not one of keys; empty where it is."""
    if not isinstance(serde, DebeziumSerde):
        return ""
    if serde.shape != ROW:
        return f"{serde!r} is an envelope; a key is a row of its columns: form='row'"
    if serde.registry is not None:
        return (
            f"{serde!r} reads Avro, and a key is also written, as the connector does: "
            f"serdes.avro(subject='<topic>-key', registry=...)"
        )
    return ""


def keyless(serde: Any, keys: pa.Array, values: pa.Array) -> Int64:
    """Rows of changes that say of no row of the table that they change it."""
    if not isinstance(serde, DebeziumSerde) or not serde.table or not keys.null_count:
        return np.zeros(0, np.int64)
    return np.flatnonzero(_flags(pc.and_(keys.is_null(), values.is_valid()), False))


# --- JSON with and without its schema -------------------------------------------------------------


class Payloads(NamedTuple):
    """Values with one schema (None: without). ``rows``: where they were."""

    schema: bytes | None
    data: pa.Array
    rows: Int64


def payloads(data: pa.Array) -> Iterator[Payloads]:
    """The rows of ``data`` (none null) by their schemas."""
    enveloped = _flags(pc.starts_with(data, _SCHEMA), False)
    odd = _flags(pc.match_substring_regex(data, _ODD), False) & ~enveloped
    bare = np.flatnonzero(~enveloped & ~odd)
    if len(bare):
        yield Payloads(None, _rows(data, bare), bare)
    rest, others = np.flatnonzero(enveloped), np.flatnonzero(odd).tolist()
    for _ in range(_MOST_SCHEMAS):
        if not len(rest):
            break
        schema = _schema_text(data[int(rest[0])].as_py())
        if schema is None:
            others.append(int(rest[0]))
            rest = rest[1:]
            continue
        some, head = _rows(data, rest), _SCHEMA + schema + _PAYLOAD
        same = _flags(pc.and_(pc.starts_with(some, head), pc.ends_with(some, b"}")), False)
        known = None if schema == b"null" else schema
        mine = _rows(some, np.flatnonzero(same))
        yield Payloads(known, pc.binary_slice(mine, len(head), -1), rest[same])
        rest = rest[~same]
    yield from _apart(data, sorted([*others, *rest.tolist()]))


def _rows(data: pa.Array, rows: Int64) -> pa.Array:
    return data if len(rows) == len(data) else data.take(pa.array(rows))


def _schema_text(row: bytes) -> bytes | None:
    """The bytes of the schema in front of a payload; None for what is not written so."""
    try:
        text = row.decode()
        _, end = _DECODER.raw_decode(text, len(_SCHEMA))
    except (ValueError, RecursionError):
        return None
    found = text[len(_SCHEMA) : end].encode()
    there = row.startswith(_PAYLOAD, len(_SCHEMA) + len(found)) and row.endswith(b"}")
    return found if there else None


_DECODER = json.JSONDecoder()


def _apart(data: pa.Array, rows: list[int]) -> Iterator[Payloads]:
    """Records that have their schemas in other forms, or are no such records, one by one."""
    parts: dict[bytes | None, tuple[list[bytes], list[int]]] = {}
    for row in rows:
        payload = data[row].as_py()
        schema: bytes | None = None
        try:
            found = orjson.loads(payload)
        except orjson.JSONDecodeError:
            found = None
        if isinstance(found, Mapping) and set(found) == {"schema", "payload"}:
            schema = None if found["schema"] is None else orjson.dumps(found["schema"])
            payload = orjson.dumps(found["payload"])
        values, places = parts.setdefault(schema, ([], []))
        values.append(payload)
        places.append(row)
    for schema, (values, places) in parts.items():
        yield Payloads(schema, pa.array(values, pa.binary()), np.array(places))


@lru_cache(maxsize=256)
def _connect_of(text: bytes) -> Connect:
    return connect_schema(orjson.loads(text))


_HINT = (
    "; the record has no schema, so the serde says how decimals and times are written: "
    "serdes.debezium(..., decimals='string', times='us')"
)


def _hinted(error: SerdeError) -> SerdeError:
    found = str(error).partition(": a number may be ")[0]  # which is the cure for plain JSON
    return SerdeError(f"{found}{_HINT}") if "does not fit" in found else error


def _needs_words(type_: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(type_) or pa.types.is_temporal(type_))


# --- Avro -----------------------------------------------------------------------------------------


def narrowed(whole: Avro, wanted: pa.DataType) -> Avro:
    """The writer's schema with the fields that are wanted alone."""
    if whole.kind == "union" and len(branches(whole)) == 1:
        parts = tuple(one if one.kind == "null" else narrowed(one, wanted) for one in whole.parts)
        return replace(whole, parts=parts)
    if whole.kind == "record" and pa.types.is_struct(wanted):
        fields = []
        for one in whole.fields:
            at = wanted.get_field_index(one.name)
            if at >= 0:
                fields.append(replace(one, type=narrowed(one.type, wanted.field(at).type)))
        if not fields:
            names = ", ".join(one.name for one in wanted)
            raise SerdeError(f"it was written as {whole}, which has none of the fields {names}")
        return replace(whole, fields=tuple(fields))
    return whole


# --- what is judged -------------------------------------------------------------------------------


def _judge_envelopes(found: pa.Array, faults: Faults) -> None:
    ops = pc.struct_field(found, "op")
    known = _flags(pc.is_in(ops, pa.array(_OPS)), False)
    without = _flags(pc.struct_field(found, "after").is_null(), False)
    rows = _flags(pc.is_in(ops, pa.array(_WITH_ROWS)), False) & without
    valid = _flags(found.is_valid(), False)
    for row in np.flatnonzero((~known | rows) & valid).tolist():
        op = ops[row].as_py()
        if rows[row]:
            why = f"the change {op!r} has no row (after)"
        elif op is None:
            why = (
                "no envelope of Debezium: it has no op. If the connector unwraps its changes "
                "(ExtractNewRecordState), read it with form='row'"
            )
        else:
            why = f"no operation of Debezium: op is {op!r:.40}"
        faults.setdefault(row, SerdeError(why))


def _judge_rows(rows: pa.Array, kept: Flags, faults: Faults) -> None:
    for name, flags in lacking(rows).items():
        for row in np.flatnonzero(flags & ~kept).tolist():
            why = (
                f"{name} is not in the change: it is kept elsewhere (TOAST), and did not change. "
                f"ALTER TABLE ... REPLICA IDENTITY FULL has it written in every change"
            )
            faults.setdefault(row, SerdeError(why))


def lacking(rows: pa.Array) -> dict[str, Flags]:
    """By column the rows whose value an update did not write, since it did not change."""
    found = {
        one.name: _unavailable(pc.struct_field(rows, [at])) for at, one in enumerate(rows.type)
    }
    return {name: flags for name, flags in found.items() if flags is not None and flags.any()}


def _unavailable(column: pa.Array) -> Flags | None:
    """As `UnchangedToastedPlaceholder` of the connector; None: its type has no such value."""
    type_ = column.type
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        words = pa.array(
            [UNAVAILABLE, json.dumps({UNAVAILABLE: UNAVAILABLE}, separators=(",", ":"))]
        )
        return _flags(pc.is_in(column, words.cast(type_)), False)
    lists = _placeholders(type_)
    if not lists:
        return None
    sizes = np.diff(column.offsets.to_numpy())  # of a null it does not matter
    likely = np.flatnonzero(np.isin(sizes, [len(one) for one in lists]))
    flags = np.zeros(len(column), bool)
    flags[likely] = [one in lists for one in column.take(pa.array(likely)).to_pylist()]
    return flags


@lru_cache(maxsize=64)
def _placeholders(type_: pa.DataType) -> tuple[list[Any], ...]:
    raw = UNAVAILABLE.encode()
    if pa.types.is_map(type_):
        return ([(UNAVAILABLE, UNAVAILABLE)],)
    if not pa.types.is_list(type_):
        return ()
    items = type_.value_type
    if pa.types.is_string(items):
        digest = hashlib.md5(raw, usedforsecurity=False).digest()
        return [UNAVAILABLE], [str(uuid.UUID(bytes=digest, version=3))]
    if pa.types.is_binary(items):
        return ([raw],)
    return (list(raw),) if pa.types.is_integer(items) else ()


def _fields_of(found: pa.Array, type_: pa.DataType) -> pa.Array:
    columns = [pc.struct_field(found, [found.type.get_field_index(one.name)]) for one in type_]
    nulls = found.is_null() if found.null_count else None
    return pa.StructArray.from_arrays(columns, fields=list(type_), mask=nulls)


def _flags(found: pa.Array, null: bool) -> Flags:
    flags: Flags = found.fill_null(null).to_numpy(zero_copy_only=False)
    return flags
