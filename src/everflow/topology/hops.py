"""Hop rows: one Arrow schema carries records on several slots between JVM and workers (design D2).

One row per input record (a *wide row*): metadata, and for every slot that crosses a live flag and
its key and value as flat nullable columns. The last row of every hop is the end marker (``_src`` =
-1); its ``_ctl`` column carries the job's control text. Matching of columns is by position in
Spark, so every batch is built and read here, with names checked (scenario 35).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.errors import EverflowError
from everflow.records import (
    HEADERS,
    EdgeBatch,
    Int64,
    KeyPlaces,
    joined_headers,
    no_headers,
)
from everflow.topology.known_results import KnownResults
from everflow.topology.physical_plan import Slot

MARKER = -1


class HopError(EverflowError):
    """A hop's rows do not look as the plan says, or ended without the end marker: an upstream stage
    failed."""

    code = "EF-HOP"


@dataclass(frozen=True)
class HopSchema:
    """Columns of one hop: metadata, then per slot ``p<id>`` (live), ``p<id>_k`` and the value:
    ``p<id>_v`` or, for structs, one column per field ``p<id>_v<i>`` after ``p<id>_vn`` (value
    present)."""

    slots: tuple[Slot, ...]
    headers: bool
    bare: bool = False
    """Rows for Columns alone have no order and no control text: two columns less for every
    record."""

    def meta(self) -> list[pa.Field]:
        fields = [
            pa.field("_src", pa.int32()),
            pa.field("_part", pa.int32()),
            pa.field("_off", pa.int64()),
            pa.field("_ts", pa.int64()),
        ]
        if not self.bare:
            fields += [pa.field("_seq", pa.int64()), pa.field("_ctl", pa.string())]
        return fields + ([pa.field("_hdr", HEADERS)] if self.headers else [])

    def slot_fields(self, slot: Slot) -> list[pa.Field]:
        name = f"p{slot.id}"
        fields = [pa.field(name, pa.bool_()), pa.field(f"{name}_k", slot.type.key)]
        if pa.types.is_struct(slot.type.value):
            fields.append(pa.field(f"{name}_vn", pa.bool_()))
            return fields + [
                pa.field(f"{name}_v{i}", slot.type.value.field(i).type)
                for i in range(slot.type.value.num_fields)
            ]
        return [*fields, pa.field(f"{name}_v", slot.type.value)]

    def arrow(self) -> pa.Schema:
        """The whole schema, in order."""
        return pa.schema(
            self.meta() + [field for slot in self.slots for field in self.slot_fields(slot)]
        )


@dataclass(kw_only=True)
class HopInput:
    """One hop's rows, read to the end: records by slot id (and the rows they stand in), the
    metadata of all rows, and the marker's control text."""

    batches: dict[int, EdgeBatch]
    rows: dict[int, Int64]
    source: np.ndarray
    partition: np.ndarray
    offset: Int64
    timestamp: Int64
    control: str
    bytes: int = 0
    """Of the records of the log that were read; step 0 tells it."""
    known: KnownResults | None = None
    ran: dict[str, Any] | None = None
    """By name the operators that have run in all steps, for
    `everflow.runtime.step.independent_failures`, where one process runs them all."""
    """What functions gave for these records before; None where nobody computes them again."""
    keys: Sequence[KeyPlaces] = ()
    """Where keys of these lie; step 0 tells it."""


def ends_hop(batch: pa.RecordBatch) -> bool:
    """Whether its last row is the end marker."""
    return (
        batch.num_rows > 0
        and "_src" in batch.schema.names
        and batch.column("_src")[-1].as_py() == MARKER
    )


def read_hop(batches: Iterable[pa.RecordBatch], schema: HopSchema) -> HopInput:
    """Read a hop to its marker.

    Raises HopError if the marker is missing: then the input was cut short by a failure upstream and
    nothing of it may be committed (scenario 33). Text that is not UTF-8 gets U+FFFD for its bad
    bytes, as Java's StringDeserializer does.
    """
    expected = schema.arrow()
    collected = []
    for batch in batches:
        if batch.schema.names != expected.names:
            raise HopError(
                f"hop columns differ: expected {expected.names}, got {batch.schema.names}"
            )
        collected.append(batch)
    if not collected:
        raise HopError("the input of a step ended without its end marker: an upstream stage failed")
    filled = [batch for batch in collected if batch.num_rows]
    if not filled or not ends_hop(filled[-1]):
        raise HopError("the input of a step ended without its end marker: an upstream stage failed")
    last = filled.pop()
    control = last.column("_ctl")[-1].as_py() or "{}"
    if last.num_rows > 1:
        filled.append(last.slice(0, last.num_rows - 1))
    # mostly one batch and then the marker alone: what is joined is copied
    body = pa.Table.from_batches(filled, last.schema).combine_chunks()
    source = _numpy(body, "_src")
    if (source == MARKER).any():
        raise HopError("the input of a step has more than one end marker")
    meta = HopInput(
        batches={},
        rows={},
        source=source,
        partition=_numpy(body, "_part"),
        offset=_numpy(body, "_off"),
        timestamp=_numpy(body, "_ts"),
        control=control,
    )
    seq = _numpy(body, "_seq")
    for slot in schema.slots:
        meta.batches[slot.id], meta.rows[slot.id] = _read_slot(
            body, slot, meta, seq, schema.headers
        )
    return meta


def narrowed(hop: HopInput, schema: HopSchema) -> tuple[HopInput, Int64]:
    """``hop`` with the slots of ``schema`` and the rows on which one of them is live alone, and
    which rows of it those are."""
    slots = [slot.id for slot in schema.slots]
    live = np.zeros(len(hop.source), bool)
    for slot in slots:
        live[hop.rows[slot]] = True
    rows = np.flatnonzero(live)
    place = np.cumsum(live) - 1
    part = HopInput(
        batches={slot: hop.batches[slot] for slot in slots},
        rows={slot: place[hop.rows[slot]] for slot in slots},
        source=hop.source[rows],
        partition=hop.partition[rows],
        offset=hop.offset[rows],
        timestamp=hop.timestamp[rows],
        control=hop.control,
    )
    return part, rows


def wide_rows(hop: HopInput, schema: HopSchema, headers: pa.Array | None) -> pa.RecordBatch:
    """All rows of ``hop`` with the slots of ``schema``, which is bare."""
    count = len(hop.source)
    columns = [
        pa.array(column, kind)
        for column, kind in (
            (hop.source, pa.int32()),
            (hop.partition, pa.int32()),
            (hop.offset, pa.int64()),
            (hop.timestamp, pa.int64()),
        )
    ]
    if schema.headers:
        columns.append(no_headers(count) if headers is None else headers)
    for slot in schema.slots:
        given = _slot_columns(hop.batches[slot.id], slot)
        scattered = _scattered(hop.rows[slot.id], count)
        columns += [column if scattered is None else column.take(scattered) for column in given]
    arrow = schema.arrow()
    return pa.RecordBatch.from_arrays(
        [_typed(c, field, count) for c, field in zip(columns, arrow, strict=True)], schema=arrow
    )


def slots_of(
    hop: HopInput, table: pa.Table, schema: HopSchema, headers: pa.Array | None
) -> Iterator[tuple[int, EdgeBatch, Int64]]:
    """Slot id, records and their rows of the slots of ``schema`` from ``table``, which has one row
    for each row of ``hop``."""
    if headers is not None:
        table = table.append_column(pa.field("_hdr", HEADERS), headers)
    seq = np.zeros(len(hop.source), np.int64)
    for slot_id, batch in hop.batches.items():
        seq[hop.rows[slot_id]] = batch.seq
    for slot in schema.slots:
        yield slot.id, *_read_slot(table, slot, hop, seq, headers is not None)


def headers_of(hop: HopInput) -> pa.Array | None:
    """Of every row, from the slots that have it; None where no record has any."""
    if all(batch.headers is None for batch in hop.batches.values()):
        return None
    found = pa.nulls(len(hop.source), HEADERS)
    for slot_id, batch in hop.batches.items():
        if batch.headers is not None:
            scattered = _scattered(hop.rows[slot_id], len(hop.source))
            mine = batch.headers if scattered is None else batch.headers.take(scattered)
            found = mine if found.null_count == len(found) else pc.coalesce(found, mine)
    return pc.coalesce(found, no_headers(len(found))) if found.null_count else found


def _scattered(rows: Int64, count: int) -> pa.Array | None:
    """For each of ``count`` rows the index of its record in a slot that has ``rows``, null where it
    has none. None: in order."""
    return None if len(rows) == count else _places(rows, count)


def _places(rows: Int64, count: int) -> pa.Array:
    index = np.zeros(count, np.int64)
    index[rows] = np.arange(len(rows))
    absent = np.ones(count, bool)
    absent[rows] = False
    return pa.array(index, pa.int64(), mask=absent)


def spread(column: pa.Array, rows: Int64, count: int) -> pa.Array:
    """A column of ``count`` rows with the given one in ``rows``, null in the others."""
    return column.take(_places(rows, count))


def _slot_columns(batch: EdgeBatch, slot: Slot) -> list[pa.Array]:
    """The columns of `HopSchema.slot_fields`."""
    live = pa.array(np.ones(len(batch), dtype=bool))
    if not pa.types.is_struct(slot.type.value):
        return [live, batch.key, batch.value]
    fields = [pc.struct_field(batch.value, [i]) for i in range(slot.type.value.num_fields)]
    return [live, batch.key, pc.is_valid(batch.value), *fields]


def _numpy(table: pa.Table, name: str) -> np.ndarray:
    column = table.column(name)
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    found: np.ndarray = array.to_numpy(zero_copy_only=False)
    return found


def _chunk(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _read_slot(
    body: pa.Table, slot: Slot, meta: HopInput, seq: Int64, headers: bool
) -> tuple[EdgeBatch, Int64]:
    name = f"p{slot.id}"
    live = _chunk(body, name)
    names = [field.name for field in HopSchema((slot,), headers).slot_fields(slot)][1:]
    types = {field.name: field.type for field in HopSchema((slot,), headers).slot_fields(slot)}
    columns = {column: readable(_as(_chunk(body, column), types[column])) for column in names}
    header = _chunk(body, "_hdr") if headers else None
    total = len(live)
    if pc.sum(live).as_py() == total and live.null_count == 0:
        keep = None
    else:
        keep = np.flatnonzero(pc.fill_null(live, False).to_numpy(zero_copy_only=False))
        index = pa.array(keep, pa.int64())
        columns = {column: array.take(index) for column, array in columns.items()}
        header = header.take(index) if header is not None else None
    value = _assemble(columns, name, slot)

    def pick(array: np.ndarray) -> np.ndarray:
        return array if keep is None else array[keep]

    batch = EdgeBatch(
        key=columns[f"{name}_k"],
        value=value,
        timestamp=pick(meta.timestamp),
        seq=pick(seq),
        source=pick(meta.source),
        partition=pick(meta.partition),
        offset=pick(meta.offset),
        headers=header,
    )
    return batch, np.arange(total, dtype=np.int64) if keep is None else keep


def _as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column in its edge's type: a session in another time zone names that zone in its
    types."""
    return array if array.type.equals(kind) else array.cast(kind)


def readable(array: pa.Array) -> pa.Array:
    """Catalyst passes bytes through as text unchecked; Arrow's check of a whole column costs next
    to nothing."""
    if not pa.types.is_string(array.type):
        return array
    try:
        array.validate(full=True)
        return array
    except pa.ArrowInvalid:
        return as_text(array.cast(pa.binary()))


def as_text(raw: pa.Array) -> pa.Array:
    """Bytes as text; bad ones become U+FFFD, as in Java."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [
            None if text is None else text.decode("utf-8", "replace") for text in raw.to_pylist()
        ]
        return pa.array(decoded, pa.string())


def _assemble(columns: dict[str, pa.Array], name: str, slot: Slot) -> pa.Array:
    if not pa.types.is_struct(slot.type.value):
        return columns[f"{name}_v"]
    kind = slot.type.value
    present = pc.fill_null(columns[f"{name}_vn"], False)
    fields = [columns[f"{name}_v{i}"] for i in range(kind.num_fields)]
    if not fields:
        return pa.array([{} if there else None for there in present.to_pylist()], kind)
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=pc.invert(present))


def write_hop(
    records: dict[int, EdgeBatch], schema: HopSchema, control: str
) -> list[pa.RecordBatch]:
    """Rows of a step's output: one row per record and slot, then the marker with ``control``."""
    arrow = schema.arrow()
    out = [
        _slot_rows(batch, slot, schema, arrow)
        for slot in schema.slots
        if len(batch := records[slot.id])
    ]
    marker = {
        "_src": [MARKER],
        "_part": [0],
        "_off": [0],
        "_ts": [0],
        "_seq": [0],
        "_ctl": [control],
    }
    nulls = [
        pa.array(marker[f.name], f.type) if f.name in marker else pa.nulls(1, f.type) for f in arrow
    ]
    return [*out, pa.RecordBatch.from_arrays(nulls, schema=arrow)]


def _slot_rows(batch: EdgeBatch, slot: Slot, schema: HopSchema, arrow: pa.Schema) -> pa.RecordBatch:
    rows = len(batch)
    columns: dict[str, pa.Array] = {
        "_src": pa.array(batch.source, pa.int32()),
        "_part": pa.array(batch.partition, pa.int32()),
        "_off": pa.array(batch.offset, pa.int64()),
        "_ts": pa.array(batch.timestamp, pa.int64()),
        "_seq": pa.array(batch.seq, pa.int64()),
        "_ctl": pa.nulls(rows, pa.string()),
    }
    if schema.headers:
        columns["_hdr"] = no_headers(rows) if batch.headers is None else batch.headers
    fields = [field.name for field in schema.slot_fields(slot)]
    columns.update(zip(fields, _slot_columns(batch, slot), strict=True))
    arrays = [_typed(columns.get(field.name), field, rows) for field in arrow]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def _typed(column: pa.Array | None, field: pa.Field, rows: int) -> pa.Array:
    """Exactly the type of the hop: Spark refuses int32 for int64, dictionaries, other time
    units."""
    if column is None:
        return pa.nulls(rows, field.type)
    return column if column.type.equals(field.type) else column.cast(field.type)


def concat(batches: Sequence[EdgeBatch]) -> EdgeBatch:
    """All records of several batches of one type, in merge order (stable by ``seq``)."""
    joined = appended(batches)
    return in_order(joined) if sum(map(bool, map(len, batches))) > 1 else joined


def appended(batches: Sequence[EdgeBatch]) -> EdgeBatch:
    """All records of several batches of one type, one batch behind the other."""
    if len(batches) == 1:
        return batches[0]
    filled = [batch for batch in batches if len(batch)] or [batches[0]]
    if len(filled) == 1:
        return filled[0]
    return EdgeBatch(
        key=pa.concat_arrays([_as(batch.key, filled[0].key.type) for batch in filled]),
        value=pa.concat_arrays([_as(batch.value, filled[0].value.type) for batch in filled]),
        timestamp=np.concatenate([batch.timestamp for batch in filled]),
        seq=np.concatenate([batch.seq for batch in filled]),
        source=np.concatenate([batch.source for batch in filled]),
        partition=np.concatenate([batch.partition for batch in filled]),
        offset=np.concatenate([batch.offset for batch in filled]),
        headers=joined_headers([(batch.headers, len(batch)) for batch in filled]),
    )


def empty_like(key: pa.DataType, value: pa.DataType) -> EdgeBatch:
    """No records of these types."""
    none64, none32 = np.empty(0, np.int64), np.empty(0, np.int32)
    return EdgeBatch(
        key=pa.array([], key),
        value=pa.array([], value),
        timestamp=none64,
        seq=none64,
        source=none32,
        partition=none32,
        offset=none64,
    )


def in_order(batch: EdgeBatch) -> EdgeBatch:
    """The same records with ``seq`` never decreasing (stable)."""
    if len(batch) < 2 or (np.diff(batch.seq) >= 0).all():
        return batch
    return batch.take(np.argsort(batch.seq, kind="stable"))
