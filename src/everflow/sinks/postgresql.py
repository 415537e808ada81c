"""Rows to a table of PostgreSQL by COPY: appended, upserted, or as versions (`history`), with the
position in one transaction.

Rows go as CSV, which Arrow writes in columns: COPY's parser is then what takes the time.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from everflow.errors import RetriableError, SinkError
from everflow.records import Int64, TopicPartition
from everflow.sinks import history
from everflow.sinks.batch import RefusedRows, RowRefused, SinkBatch, family, last_of_each, misfit

Flags = npt.NDArray[np.bool_]
CHUNK = 1 << 20
"""Bytes that are handed to COPY at a time."""
DEFAULTS: Mapping[str, Any] = {
    "connect_timeout": 10,
    "tcp_user_timeout": 30_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "application_name": "everflow",
}
"""Unless the dsn says otherwise: a server that vanishes is noticed within half a minute, not by the
watchdog of batches."""
LOCK_TIMEOUT = "60s"
"""Whoever holds the position, or the table, for longer is waited for by `task.timeout.ms`."""
_LINE = re.compile(r"^COPY .*, line (\d+)(?:, column ([^:\n]+))?", re.MULTILINE)
_PASSING = frozenset(("08", "28", "40", "53", "55", "57", "58"))
"""Classes of SQLSTATE: connections, logins, rollbacks (deadlocks), resources (a full disk, too many
connections), locks, shutdowns, faults of the system."""
_OF_ROWS = frozenset(("22", "23"))
"""Data, and constraints."""
_OF_SERVERS = _PASSING | {"0A", "25", "26", "34", "3B", "3D", "3F", "42", "54"}
"""Their texts are of the server and the statement: none has a value of a row."""
ARRAY = "[]"
"""Ends the name of a type of arrays."""
_NUMBERS = ("smallint", "integer", "bigint", "numeric", "real", "double precision")
_TEXTS = ("text", "character varying", "character", "json", "jsonb", "uuid", "inet", "xml")
_TYPES: Mapping[str, tuple[str, ...]] = {
    "whole number": _NUMBERS,
    "number": ("real", "double precision", "numeric"),
    "decimal": ("numeric", "double precision", "real"),
    "text": _TEXTS,
    "bytes": ("bytea",),
    "time": ("timestamp with time zone",),
    "local time": ("timestamp without time zone",),
    "date": ("date", "timestamp without time zone"),
    "boolean": ("boolean",),
    "struct": ("json", "jsonb", "text"),
    "map": ("json", "jsonb", "text"),
    "list": ("json", "jsonb", "text"),
}


@dataclass(eq=False, kw_only=True)
class PostgresSink:
    """A `Sink`. See `KStream.write_stream`."""

    dsn: str = field(repr=False)
    """As libpq reads it; passwords belong to ``PGPASSWORD`` or ``~/.pgpass``."""
    table: str
    mode: str = "append"
    positions: str = "everflow_positions"
    _connection: Any = field(default=None, init=False, repr=False)
    _types: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    MODES = ("append", "upsert", "scd2")
    PACKAGE, EXTRA = "psycopg", "postgresql"
    _staged = history.ROWS
    """A table of the session; a CHECK of the target is made here, where the row is known."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_connection": None, "_types": {}}

    def write(self, batch: SinkBatch) -> None:
        """See `Sink`."""
        failed = self._tried(batch)
        if failed is not None:  # raised here, so that the driver's error, with values, is not in it
            raise failed

    def _tried(self, batch: SinkBatch) -> Exception | None:
        import psycopg

        lines = _Lines(batch.sink, self.table)
        try:
            self._written(batch, lines)
        except psycopg.Error as error:
            self._close()
            return failure(batch.sink, self.table, error, lines)
        except BaseException:
            if self._connection is not None and self._connection.closed:
                self._connection = None
            raise
        return None

    def _written(self, batch: SinkBatch, lines: _Lines) -> None:
        connection = self._connected()
        if not self._types:
            self._prepare(connection, batch)
        with connection.transaction(), connection.cursor() as cursor:
            if not batch.to_write(self._position(cursor, batch)):
                return
            match self.mode:
                case "append":
                    self._copied(cursor, self.table, batch.rows, lines)
                case "upsert":
                    self._upserted(cursor, batch, lines)
                case _:
                    self._versioned(cursor, batch, lines)
            self._keep_position(cursor, batch)

    # --- rows -------------------------------------------------------------------------------------

    def _copied(self, cursor: Any, table: str, rows: pa.Table, lines: _Lines) -> None:
        _refuse_ends(rows, lines)
        lines.begin(rows, self._types)
        columns = ", ".join(map(quoted, rows.column_names))
        text = memoryview(as_csv(rows, self._types))
        with cursor.copy(f"COPY {table} ({columns}) FROM STDIN (FORMAT csv, HEADER)") as copy:
            for at in range(0, len(text), CHUNK):
                copy.write(text[at : at + CHUNK])
        lines.over()
        if cursor.rowcount != len(rows):
            raise SinkError(f"COPY {table} took {cursor.rowcount} of {len(rows)} rows")

    def _upserted(self, cursor: Any, batch: SinkBatch, lines: _Lines) -> None:
        """The last row of each key counts: an INSERT may touch a row of the table once."""
        last = last_of_each(batch.rows, batch.keys)
        gone = _gone(batch)
        at: Int64 = last.to_numpy().astype(np.int64)
        kept, deleted = at[~gone[at]], at[gone[at]]
        keys = [quoted(name) for name in batch.keys]
        if len(deleted):
            found = batch.rows.select(batch.keys).take(pa.array(deleted)).to_pylist()
            where = " AND ".join(f"{name} = %s" for name in keys)
            cursor.executemany(
                f"DELETE FROM {self.table} WHERE {where}", [tuple(row.values()) for row in found]
            )
        if not len(kept):
            return
        lines.rows = kept
        cursor.execute(
            f"CREATE TEMPORARY TABLE IF NOT EXISTS {self._staged} (LIKE {self.table} INCLUDING "
            f"DEFAULTS INCLUDING CONSTRAINTS INCLUDING IDENTITY) ON COMMIT DELETE ROWS"
        )
        self._copied(cursor, self._staged, batch.rows.take(pa.array(kept)), lines)
        names = [quoted(name) for name in batch.rows.column_names]
        others = [name for name in names if name not in keys]
        sets = ", ".join(f"{name} = EXCLUDED.{name}" for name in others)
        then = f"UPDATE SET {sets}" if sets else "NOTHING"
        columns = ", ".join(names)
        cursor.execute(
            f"INSERT INTO {self.table} ({columns}) SELECT {columns} FROM {self._staged} "
            f"ON CONFLICT ({', '.join(keys)}) DO {then}"
        )

    def _versioned(self, cursor: Any, batch: SinkBatch, lines: _Lines) -> None:
        """A row for each version of a key (`history`)."""
        keys = [quoted(name) for name in batch.keys]
        for statement in history.preparing(self.table, keys):
            cursor.execute(statement)
        gone, rows = _gone(batch), history.staged(batch)
        deleted, lines.rows = np.flatnonzero(gone), np.flatnonzero(~gone)
        self._copied(cursor, self._staged, rows.take(pa.array(lines.rows)), lines)
        keyed = rows.select([*batch.keys, history.FROM, history.NUMBER])
        lines.rows = deleted
        self._copied(cursor, history.GONE, keyed.take(pa.array(deleted)), lines)
        names = [quoted(name) for name in batch.rows.column_names]
        for statement in history.versions(self.table, keys, names):
            cursor.execute(statement)

    # --- the position -----------------------------------------------------------------------------

    def _position(self, cursor: Any, batch: SinkBatch) -> dict[TopicPartition, int]:
        """Under a lock until the end of the transaction. A row for each input is there at once: two
        that come first would not see each other's."""
        if not batch.offsets:
            return {}
        found = self._stored(cursor, batch)
        if len(found) < len(batch.offsets):
            cursor.executemany(
                f"INSERT INTO {self.positions} VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
                [
                    (*_of(batch), str(tp), one.start, batch.topic_ids.get(tp.topic, ""))
                    for tp, one in batch.offsets.items()
                    if tp not in found
                ],
            )
            found = self._stored(cursor, batch)
        return found

    def _stored(self, cursor: Any, batch: SinkBatch) -> dict[TopicPartition, int]:
        logs = [str(tp) for tp in sorted(batch.offsets)]
        cursor.execute(
            f"SELECT log, position, topic_id FROM {self.positions} WHERE application = %s "
            f"AND sink = %s AND log = ANY(%s) ORDER BY log FOR UPDATE",
            (*_of(batch), logs),
        )
        found = [(TopicPartition.parse(log), at, topic) for log, at, topic in cursor.fetchall()]
        delete = f"DELETE FROM {self.positions} WHERE application = '%s' AND sink = '%s'" % _of(
            batch
        )
        batch.require_same_topics({tp: topic for tp, _, topic in found}, f"run {delete}")
        return {tp: int(at) for tp, at, _ in found}

    def _keep_position(self, cursor: Any, batch: SinkBatch) -> None:
        if not batch.offsets:
            return
        cursor.executemany(
            f"UPDATE {self.positions} SET position = %s "
            f"WHERE application = %s AND sink = %s AND log = %s",
            [(end, *_of(batch), str(tp)) for tp, end in batch.ends.items()],
        )

    # --- the connection ---------------------------------------------------------------------------

    def _connected(self) -> Any:
        import psycopg

        if self._connection is None:
            given = psycopg.conninfo.conninfo_to_dict(self.dsn)
            settings: dict[str, Any] = {**DEFAULTS, **given}
            connection = psycopg.connect(**settings, autocommit=True)
            connection.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'")
            self._connection = connection
        return self._connection

    def _prepare(self, connection: Any, batch: SinkBatch) -> None:
        import psycopg

        (there,) = connection.execute("SELECT to_regclass(%s)", (self.positions,)).fetchone()
        if there is None:
            # Two that create it at once may meet in the catalog, in spite of IF NOT EXISTS.
            with suppress(psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable):
                connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {self.positions} (application text, sink text, "
                    f"log text, position bigint NOT NULL, topic_id text NOT NULL, "
                    f"PRIMARY KEY (application, sink, log))"
                )
        types = dict(
            connection.execute(
                "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
                "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
                (self.table,),
            ).fetchall()
        )
        rows = batch.rows.schema
        found = history.schema_of(rows) if self.mode == "scd2" else rows
        require_types(batch.sink, self.table, found, types)
        self._types = types

    def _close(self) -> None:
        connection, self._connection, self._types = self._connection, None, {}
        if connection is not None:
            connection.close()


def _gone(batch: SinkBatch) -> Flags:
    if batch.deletes is None:
        return np.zeros(len(batch.rows), bool)
    found: Flags = batch.deletes.to_numpy(zero_copy_only=False)
    return found


class _Lines:
    """Which row a line of what COPY reads belongs to."""

    def __init__(self, sink: str, table: str) -> None:
        self.sink, self.table = sink, table
        self.rows: Int64 | None = None
        """The batch's rows that are copied; None: all."""
        self._copied: pa.Table | None = None
        self._types: Mapping[str, str] = {}

    def begin(self, copied: pa.Table, types: Mapping[str, str]) -> None:
        self._copied, self._types = copied, types

    def over(self) -> None:
        self._copied = None

    def row_of(self, line: int) -> int | None:
        """None: not while rows were copied."""
        if self._copied is None:
            return None
        ends = np.ones(len(self._copied), np.int64)
        for column in as_texts(self._copied, self._types).columns:
            if pa.types.is_string(column.type):
                breaks = pc.fill_null(pc.count_substring(column, "\n"), 0)
                ends += breaks.to_numpy().astype(np.int64)
        row = int(np.searchsorted(np.cumsum(ends), line - 1))  # behind the header
        if row >= len(ends):
            return None
        return row if self.rows is None else int(self.rows[row])


def is_away(error: Any) -> bool:
    """True if what a psycopg error says may pass: no connection, no room, a login, a lock."""
    if error.sqlstate is None:
        return type(error).__name__ != "ProgrammingError"  # that is a dsn that cannot be read
    return error.sqlstate[:2] in _PASSING


def failure(sink: str, table: str, error: Any, lines: _Lines) -> Exception:
    """What a psycopg error means. ``lines``: of the rows that were copied."""
    state, text = error.sqlstate, said_of(error)
    if is_away(error):
        full = " There is no room left." if state in ("53100", "53200") else ""
        return RetriableError(f"PostgreSQL does not take the rows of {table}.{full} {text}")
    if state is not None and state[:2] in _OF_ROWS and (line := _line_of(error)) is not None:
        row = lines.row_of(int(line[1]))
        if row is not None:
            column = error.diag.column_name or line[2]
            return RefusedRows({row: RowRefused(sink, f"table {table}", text, column)})
    return SinkError(f"Sink {sink}: PostgreSQL refuses the rows for {table}: {text}")


def said_of(error: Any) -> str:
    """What a psycopg error says without the values of rows: errors and logs are read by others than
    tables. Its DETAIL and CONTEXT have values, and so have the texts of most classes, as `invalid
    input syntax for type integer: "..."`, also in other languages: of those the code is said in
    words, with column, constraint and type."""
    if error.sqlstate is None:
        return f"dsn or connection: {' '.join(str(error).split())}"
    diag = error.diag
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()
    if error.sqlstate[:2] in _OF_SERVERS:
        words = " ".join((diag.message_primary or words).split())
    line = _line_of(error)
    places = {
        "table": diag.table_name,
        "column": diag.column_name or (line[2] if line is not None else None),
        "constraint": diag.constraint_name,
        "type": diag.datatype_name,
    }
    named = "".join(f", {what} {name}" for what, name in places.items() if name)
    return f"{error.sqlstate}, {words}{named}"


def _line_of(error: Any) -> re.Match[str] | None:
    return _LINE.search(error.diag.context or "")


def require_types(sink: str, table: str, rows: pa.Schema, types: Mapping[str, str]) -> None:
    """SinkError for a column that the table does not have, or has in a type that does not fit.
    A type of the user's (an enum, a domain) takes texts, an array takes lists."""
    known = {name for names in _TYPES.values() for name in names}
    for column in rows:
        found = types.get(column.name)
        if found is None:
            raise SinkError(
                f"Sink {sink}: table {table} has no column {column.name!r}, which the rows have; "
                f"it has {', '.join(types)}. Choose columns with map_values, or alter the table."
            )
        kind = family(column.type)
        fits = _TYPES.get(kind, ())
        own = (found not in known and kind == "text") or (kind == "list" and found.endswith(ARRAY))
        if found not in fits and not own:
            raise misfit(sink, table, column, found)


def _of(batch: SinkBatch) -> tuple[str, str]:
    return batch.application_id, batch.sink


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def as_texts(rows: pa.Table, types: Mapping[str, str]) -> pa.Table:
    """The same in columns that Arrow writes as PostgreSQL reads them. ``types``: of its columns."""
    texts = {name: _text(rows.column(name), types.get(name, "")) for name in rows.column_names}
    return pa.table(texts)


def as_csv(rows: pa.Table, types: Mapping[str, str]) -> pa.Buffer:
    """A null is nothing, an empty text is in quotes: COPY tells them apart. It counts the lines of
    texts only once it has seen where a line ends: the header, which it leaves out, shows it."""
    out = io.BytesIO()
    csv.write_csv(as_texts(rows, types), out, csv.WriteOptions(include_header=True))
    return out.getbuffer()


def _refuse_ends(rows: pa.Table, lines: _Lines) -> None:
    """RefusedRows for texts with a line of ``\\.``, which ends COPY's data before PostgreSQL 18, in
    quotes, too."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if pa.types.is_string(column.type):
            ends = pc.fill_null(pc.match_substring_regex(column, r"\n\\\.(\r?\n|$)"), False)
            found = np.flatnonzero(ends.to_numpy())
            at = found if lines.rows is None else lines.rows[found]
            if len(at):
                why = "a text has a line that is \\. alone, where COPY ends its data"
                error = RowRefused(lines.sink, f"table {lines.table}", why, name)
                raise RefusedRows(dict.fromkeys(at.tolist(), error))


def _text(column: pa.ChunkedArray, type_: str) -> pa.Array:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.nulls(0, array.type)
    kind = array.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _listed(array, lambda value: "\\x" + value.hex())
    if type_.endswith(ARRAY):
        return _listed(array, array_text)
    if pa.types.is_nested(kind):
        return _listed(array, lambda value: json.dumps(value, default=str, ensure_ascii=False))
    return array


def array_text(value: Any) -> str:
    """As PostgreSQL reads an array of any type."""
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return "{" + ",".join(map(array_text, value)) + "}"
    if isinstance(value, dict):
        text = json.dumps(value, default=str, ensure_ascii=False)
    else:
        text = "\\x" + value.hex() if isinstance(value, bytes) else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _listed(array: pa.Array, write: Any) -> pa.Array:
    return pa.array(
        [None if value is None else write(value) for value in array.to_pylist()], pa.string()
    )
