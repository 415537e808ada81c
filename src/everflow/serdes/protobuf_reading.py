"""Protobuf bytes -> columns: for all rows at once, field by field in the order of their numbers.

A row is marked that has its fields in another order or twice, or that is broken; the library reads
it, and says why if it cannot either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from everflow.records import Int64
from everflow.serdes.base import SerdeError, ranges, starts
from everflow.serdes.byte_rows import (
    MOST_ROUNDS,
    Faults,
    Flags,
    Rows,
    as_map,
    as_text,
    in_order,
    signed,
    varint_places,
)
from everflow.serdes.protobuf_types import FIXED, INSTANT, LARGE, LENGTH, Part, tag_of, wire_of
from everflow.serdes.schema import TIMESTAMP

_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
_END = 1 << 40
"""In place of a tag: the message has no further field."""
_FIRST_TAG, _LAST_TAG = 1 << 3, (1 << 32) - 1
_NEAR = 4096
"""Numbers of an enum that lie so close together are found by a table."""

Read = Callable[[Rows], pa.Array]


@dataclass
class _Fields:
    """Rows of one message. ``tag``: of the field that each has next, behind which it stands."""

    rows: Rows
    tag: Int64

    @staticmethod
    def of(rows: Rows) -> _Fields:
        return _Fields(rows, _tags(rows))

    def taken(self, tag: int, read: Callable[[Rows], Any]) -> tuple[Any, Int64 | None]:
        """What ``read`` makes of the rows that have a field with ``tag`` next, and which these are
        (None: all); they are then at their next one."""
        mine = self.tag == tag
        if mine.all():
            found = read(self.rows)
            self.tag = _tags(self.rows)
            return found, None
        places = np.flatnonzero(mine)
        some = self.rows.some(places)
        found = read(some)
        self.tag[places] = _tags(some)
        self.rows.back(some, places)
        return found, places

    def skip(self, until: int, known: Int64) -> None:
        """Go over fields whose tag is below ``until``. They are others than the ``known``: such a
        one is there twice, or out of order, and its row is marked."""
        while True:
            others = np.flatnonzero(self.tag < until)
            if not len(others):
                return
            some, tags = self.rows.some(others), self.tag[others]
            some.mark(np.isin(tags >> 3, known))
            for wire in np.unique(tags & 7).tolist():
                mine = np.flatnonzero(tags & 7 == wire)
                inner = some.some(mine)
                _skipped(inner, wire)
                some.back(inner, mine)
            self.tag[others] = _tags(some)
            self.rows.back(some, others)

    def give_up(self, wrong: Flags) -> None:
        self.rows.mark(wrong)
        self.tag[wrong] = _END


def _tags(rows: Rows) -> Int64:
    going = rows.at < rows.end
    if going.all():
        found = rows.varints()
    else:
        places = np.flatnonzero(going)
        some = rows.some(places)
        found = np.full(len(rows), _END, np.uint64)
        found[places] = some.varints()
        rows.back(some, places)
    wrong = going & ((found < _FIRST_TAG) | (found > _LAST_TAG))
    if wrong.any():
        rows.mark(wrong)
        found[wrong] = _END
    return found.astype(np.int64)


def _skipped(rows: Rows, wire: int) -> None:
    if wire == 0:
        rows.varints()
    elif wire == LENGTH:
        rows.moved(rows.sizes(rows.varints().astype(np.int64)))
    elif wire in FIXED:
        rows.moved(FIXED[wire])
    else:  # a group
        rows.mark(np.ones(len(rows), bool))


# --- compiling ------------------------------------------------------------------------------------


def message_reader(part: Part) -> Read:
    """Reads the fields of a message up to the ends of the rows."""
    order = sorted(range(len(part.inner)), key=lambda at: part.inner[at].number)
    steps = [(at, part.inner[at].number << 3, _field(part.inner[at])) for at in order]
    known = np.array([one.number for one in part.inner], np.int64)
    oneofs: dict[str, list[int]] = {}
    for at, one in enumerate(part.inner):
        if one.oneof:
            oneofs.setdefault(one.oneof, []).append(at)
    fields = list(part.type)

    def read(rows: Rows) -> pa.Array:
        found = _Fields.of(rows)
        columns: list[Any] = [None] * len(steps)
        for at, first_tag, step in steps:
            found.skip(first_tag, known)
            columns[at] = step(found)
        found.skip(_END, known)
        for members in oneofs.values():  # of several the last one counts
            there = [columns[at].is_valid().to_numpy(zero_copy_only=False) for at in members]
            rows.mark(np.sum(there, axis=0) > 1)
        if not fields:
            return pa.array([{}] * len(rows), part.type)
        return pa.StructArray.from_arrays(columns, fields=fields)

    return read


def _field(part: Part) -> Callable[[_Fields], pa.Array]:
    if part.kind == "list":
        return _list(part)
    if part.kind == "map":
        return _map(part)
    tag, read = tag_of(part), _value(part)
    absent = pa.nulls(1, part.type)
    if not part.presence:
        zeros: dict[str, Any] = {"STRING": "", "BYTES": b"", "BOOL": False}
        zero = part.names.get(0, "0") if part.kind == "ENUM" else zeros.get(part.kind, 0)
        absent = pa.array([Decimal(zero) if part.kind in LARGE else zero], part.type)

    def step(found: _Fields) -> pa.Array:
        column, rows = found.taken(tag, read)
        if rows is None:
            return column
        places = np.full(len(found.rows), len(column))
        places[rows] = np.arange(len(rows))
        if part.required:
            found.give_up(places == len(column))
        return pa.concat_arrays([column, absent]).take(pa.array(places))

    return step


def _value(part: Part) -> Read:
    """Of what stands behind a tag."""
    match part.kind:
        case "message":
            inner = message_reader(part)
            return lambda rows: inner(_inside(rows))
        case "wrapper":
            type_ = pa.struct([("value", part.type)])
            wrapped = message_reader(part._replace(kind="message", type=type_))
            return lambda rows: wrapped(_inside(rows)).field(0)
        case "time":
            instant = message_reader(INSTANT)
            return lambda rows: _times(rows, instant)
        case "STRING":
            return _texts
        case "BYTES":
            return _blobs
    wire, numbers = wire_of(part), _numbers(part)
    if wire in FIXED:
        code = {"DOUBLE": "<f8", "FLOAT": "<f4"}.get(part.kind, f"<u{FIXED[wire]}")
        return lambda rows: numbers(rows, rows.numbers(code))
    return lambda rows: numbers(rows, rows.varints())


def _blobs(rows: Rows) -> pa.Array:
    return rows.blobs(rows.varints().astype(np.int64))


def _texts(rows: Rows) -> pa.Array:
    column, wrong = as_text(_blobs(rows))
    if wrong is not None:
        rows.mark(wrong)
    return column


def _inside(rows: Rows) -> Rows:
    """The messages whose sizes come next; ``rows`` are then behind them."""
    sizes = rows.sizes(rows.varints().astype(np.int64))
    begins = rows.moved(sizes)
    return Rows(rows.content, begins, begins + sizes, rows.row, rows.bad, rows.stops)


def _times(rows: Rows, read: Read) -> pa.Array:
    seconds, nanos = (one.to_numpy() for one in read(_inside(rows)).flatten())
    odd = _beyond(seconds, nanos)
    rows.mark(odd)
    return _micros(seconds, nanos, odd)


def _beyond(seconds: npt.NDArray[Any], nanos: npt.NDArray[Any]) -> Flags:
    odd: Flags = (nanos % 1000 != 0) | (seconds < _FIRST_SECOND) | (seconds > _LAST_SECOND)
    return odd


def _micros(seconds: npt.NDArray[Any], nanos: npt.NDArray[Any], odd: Flags) -> pa.Array:
    micros = np.where(odd, 0, seconds) * 1_000_000 + nanos.astype(np.int64) // 1000
    return pa.array(micros).view(TIMESTAMP)


def _numbers(part: Part) -> Callable[[Rows, Any], pa.Array]:
    """Unsigned numbers, or floats, as the column of a scalar."""
    match part.kind:
        case "DOUBLE" | "FLOAT":
            return lambda rows, found: pa.array(found)
        case "INT32" | "SFIXED32":
            return lambda rows, found: pa.array(_ints(found))
        case "INT64" | "SFIXED64":
            return lambda rows, found: pa.array(found.view(np.int64))
        case "UINT32" | "FIXED32":
            return lambda rows, found: pa.array(found.astype(np.uint32).astype(np.int64))
        case "SINT32":
            return lambda rows, found: pa.array(
                signed(found & np.uint64(0xFFFF_FFFF)).astype(np.int32)
            )
        case "SINT64":
            return lambda rows, found: pa.array(signed(found))
        case "BOOL":
            return lambda rows, found: pa.array(found != 0)
        case "ENUM":
            return lambda rows, found: _names(part, rows, _ints(found))
    return lambda rows, found: _large(found)


def _ints(found: Any) -> npt.NDArray[np.int32]:
    return found.astype(np.uint32).view(np.int32)  # type: ignore[no-any-return]


def _large(found: Any) -> pa.Array:
    halves = np.zeros((len(found), 2), np.uint64)
    halves[:, 0] = found
    return pa.Array.from_buffers(pa.decimal128(20, 0), len(found), [None, pa.py_buffer(halves)])


def _names(part: Part, rows: Rows, found: npt.NDArray[np.int32]) -> pa.Array:
    """A number that a later schema has a name for is not lost."""
    first, last = (int(found.min()), int(found.max())) if len(found) else (0, 0)
    if last - first < _NEAR:
        kinds, places = np.arange(first, last + 1), found.astype(np.int64) - first
    else:
        kinds, places = np.unique(found, return_inverse=True)
    if part.closed:
        rows.mark(~np.isin(found, list(part.names)))
    names = [part.names.get(one) or str(one) for one in kinds.tolist()]
    return pa.array(names, pa.string()).take(pa.array(places))


# --- lists and maps -------------------------------------------------------------------------------


def _list(part: Part) -> Callable[[_Fields], pa.Array]:
    one = part.inner[0]
    read, wire = _value(one), wire_of(one)
    single, packed = part.number << 3 | wire, part.number << 3 | LENGTH
    block = None if wire == LENGTH else _block(read, FIXED.get(wire, 0))

    def step(found: _Fields) -> pa.Array:
        counts = np.zeros(len(found.rows), np.int64)
        columns: list[pa.Array] = []
        owners: list[Int64] = []
        if block is not None and (found.tag == packed).any():
            (column, counted), rows = found.taken(packed, block)
            mine = np.arange(len(counts)) if rows is None else rows
            counts[mine] = counted
            columns.append(column)
            owners.append(np.repeat(mine, counted))
        _in_rounds(found, single, read, columns, owners, counts)
        entries = in_order(columns, owners, one.type) if columns else read(found.rows.none())
        return pa.ListArray.from_arrays(pa.array(starts(counts), pa.int32()), entries)

    return step


def _in_rounds(
    found: _Fields,
    tag: int,
    read: Read,
    columns: list[pa.Array],
    owners: list[Int64],
    counts: Int64,
) -> None:
    """The n-th fields of all rows together."""
    for _ in range(MOST_ROUNDS):
        if not (found.tag == tag).any():
            return
        column, rows = found.taken(tag, read)
        mine = np.arange(len(counts)) if rows is None else rows
        counts[mine] += 1
        columns.append(column)
        owners.append(mine)
    found.give_up(found.tag == tag)


def _block(read: Read, width: int) -> Callable[[Rows], tuple[pa.Array, Int64]]:
    """Packed entries, and how many each row has. ``width``: bytes of one; 0: they are varints."""

    def entries(rows: Rows) -> tuple[pa.Array, Int64]:
        sizes = rows.sizes(rows.varints().astype(np.int64))
        begins = rows.moved(sizes)
        if width:
            rows.mark(sizes % width > 0)
            counts = sizes // width
            first = counts
        else:
            stops = rows.varint_ends()
            first = np.searchsorted(stops, begins)
            counts = np.searchsorted(stops, begins + sizes) - first
            last = stops[np.minimum(first + counts, len(stops)) - 1]
            rows.mark((sizes > 0) & ((counts == 0) | (last != begins + sizes - 1)))
        counts = np.where(rows.bad[rows.row], 0, counts)
        if not counts.any():
            return read(rows.none()), counts
        inner = rows.some(np.repeat(np.arange(len(rows)), counts))
        if width:
            inner.at = ranges(begins, counts * width)[::width]
        else:
            inner.at = varint_places(rows, begins, first, counts)
        return read(inner), counts

    return entries


def _map(part: Part) -> Callable[[_Fields], pa.Array]:
    key, item = part.inner
    type_ = pa.struct([("key", key.type), ("value", item.type)])
    entry = message_reader(Part("", "message", type_, inner=(key, item)))
    tag = part.number << 3 | LENGTH

    def read(rows: Rows) -> pa.Array:
        column = entry(_inside(rows))
        if (value := column.field(1)).null_count:  # a message that is not there is an empty one
            rows.mark(value.is_null().to_numpy(zero_copy_only=False))
        return column

    def step(found: _Fields) -> pa.Array:
        counts = np.zeros(len(found.rows), np.int64)
        columns: list[pa.Array] = []
        owners: list[Int64] = []
        _in_rounds(found, tag, read, columns, owners, counts)
        pairs = in_order(columns, owners, type_) if columns else read(found.rows.none())
        lists = pa.ListArray.from_arrays(pa.array(starts(counts), pa.int32()), pairs)
        return as_map(lists, counts, found.rows)

    return step


# --- whole values ---------------------------------------------------------------------------------


def read_columns(data: pa.Array, part: Part, read: Read) -> tuple[pa.Array, Faults]:
    """A column of ``part.type`` from ``data`` (``pa.binary()``, none null), null where a row cannot
    be read, and why. ``read``: `message_reader` of ``part``."""
    rows = Rows.of(data)
    column = read(rows)
    if not rows.bad.any():
        return column, {}
    places, good = np.flatnonzero(rows.bad), np.flatnonzero(~rows.bad)
    others, faults = read_rows(data.take(pa.array(places)), part)
    both = in_order([column.take(pa.array(good)), others], [good, places], column.type)
    return both, {int(places[row]): error for row, error in faults.items()}


def read_rows(data: pa.Array, part: Part) -> tuple[pa.Array, Faults]:
    """As `read_columns`, by the library, one after the other."""
    faults: Faults = {}
    messages = _parsed(data, part.make.FromString, faults)
    wrong = np.zeros(len(messages), bool)
    column = _column(messages, part, np.arange(len(messages)), wrong)
    for row in np.flatnonzero(wrong).tolist():
        faults.setdefault(row, SerdeError("Protobuf that does not fit: a time has nanoseconds"))
    if faults:
        wrong[list(faults)] = True
        column = column.take(pa.array(np.arange(len(messages)), mask=wrong))
    return column, dict(sorted(faults.items()))


def _parsed(data: pa.Array, parse: Callable[[bytes], Any], faults: Faults) -> list[Any]:
    """Empty messages for those that are none."""
    rows = data.to_pylist()
    if None not in rows:
        try:
            return list(map(parse, rows))
        except Exception:  # which of them, and why, is found below
            pass
    found = []
    for row, one in enumerate(rows):
        try:
            found.append(parse(one or b""))
        except Exception as error:
            faults.setdefault(row, SerdeError(f"Protobuf that does not fit: {error}"))
            found.append(parse(b""))
    return found


def _column(messages: Sequence[Any], part: Part, owners: Int64, wrong: Any) -> pa.Array:
    """Of messages, none of which is None."""
    if not part.inner:
        return pa.array([{}] * len(messages), part.type)
    columns = [_listed(messages, one, owners, wrong) for one in part.inner]
    return pa.StructArray.from_arrays(columns, fields=list(part.type))


def _listed(messages: Sequence[Any], part: Part, owners: Int64, wrong: Any) -> pa.Array:
    name = part.name
    values: list[Any] = list(map(attrgetter(name), messages))
    if part.kind == "list":
        counts = np.fromiter(map(len, values), np.int64, len(values))
        inner = _values(
            [e for one in values for e in one], part.inner[0], np.repeat(owners, counts), wrong
        )
        return pa.ListArray.from_arrays(pa.array(starts(counts), pa.int32()), inner)
    if part.kind == "map":
        counts = np.fromiter(map(len, values), np.int64, len(values))
        around = np.repeat(owners, counts)
        keys = _values([k for one in values for k in one], part.inner[0], around, wrong)
        items = _values([one[k] for one in values for k in one], part.inner[1], around, wrong)
        return pa.MapArray.from_arrays(pa.array(starts(counts), pa.int32()), keys, items)
    if not part.presence:
        return _values(values, part, owners, wrong)
    there = np.fromiter((one.HasField(name) for one in messages), bool, len(messages))
    if there.all():
        return _values(values, part, owners, wrong)
    rows = np.flatnonzero(there)
    found = _values([values[row] for row in rows], part, owners[rows], wrong)
    return found.take(pa.array(np.cumsum(there) - 1, mask=~there))


def _values(values: Sequence[Any], part: Part, owners: Int64, wrong: Any) -> pa.Array:
    if part.kind == "message":
        return _column(values, part, owners, wrong)
    if part.kind == "wrapper":
        return _values([one.value for one in values], part.inner[0], owners, wrong)
    if part.kind == "time":
        seconds = np.fromiter((one.seconds for one in values), np.int64, len(values))
        nanos = np.fromiter((one.nanos for one in values), np.int64, len(values))
        odd = _beyond(seconds, nanos)
        wrong[owners[odd]] = True
        return _micros(seconds, nanos, odd)
    if part.kind == "ENUM":  # a number that a later schema has a name for is not lost
        values = [part.names.get(one) or str(one) for one in values]
    if part.kind in LARGE:
        values = [Decimal(one) for one in values]
    return pa.array(values, part.type)
