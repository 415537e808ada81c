"""Where the rows of `./run chaos sinks` go, one class for all kinds of sinks: how the program
writes there, and how the rows are read in the end."""

from __future__ import annotations

import http.server
import json
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

from everflow import KStream, StreamsBuilder, agg, serdes

ROWS, TOTALS = "rows", "totals"
"""The sinks of the program: of records as they are, and of an aggregate behind a re-key."""
COLUMNS = {ROWS: ("id", "n", "item"), TOTALS: ("item", "count", "total")}
LEFT_OUT = 7
"""Each record whose number is a multiple of it is filtered."""
POSTGRESQL, UPSERT, DELTA, ICEBERG = "postgresql", "postgresql-upsert", "delta", "iceberg"
PARQUET, HTTP, FUNCTION, SOURCE = "parquet", "http", "for-each-batch", "data-source"
EXACT = (POSTGRESQL, UPSERT, DELTA, ICEBERG, PARQUET)
"""Each row is there once."""
KINDS = (*EXACT, HTTP, FUNCTION, SOURCE)
_TABLES = {
    ROWS: "CREATE TABLE rows (id text, n bigint, item text)",
    TOTALS: 'CREATE TABLE totals (item text, "count" bigint, total bigint)',
}


@dataclass(frozen=True)
class Place:
    """``at``: a dsn of PostgreSQL, the address of a service, or a folder."""

    kind: str
    at: str

    def program(self, source: str) -> StreamsBuilder:
        """Only filters, and re-keys and aggregates, the records of a topic."""
        builder = StreamsBuilder()
        value = serdes.json("n bigint, item string")
        records = builder.stream(source, key=serdes.string(), value=value)
        self._write(records.filter(is_kept), ROWS)
        by_item = records.group_by(item, name="by-item", returns="string")
        totals = by_item.aggregate(count=agg.count(), total=agg.sum("value.n"), store=TOTALS)
        self._write(totals.to_stream(), TOTALS)
        return builder

    def _write(self, stream: KStream, name: str) -> None:
        key, folder = COLUMNS[name][0], str(Path(self.at, name))
        if self.kind == FUNCTION:
            names = {"key": key, **{f"value.{one}": one for one in COLUMNS[name][1:]}}

            def put(rows: pa.Table) -> None:
                found = rows.select(list(names)).rename_columns(list(names.values()))
                put_file(folder, found.to_pylist())

            stream.for_each_batch(put, name=name)
            return
        options: dict[str, Any] = {"path": folder}
        if self.kind in (POSTGRESQL, UPSERT):
            options = {"dsn": self.at, "table": name}
            options |= {"mode": "upsert"} if self.kind == UPSERT else {}
        elif self.kind == ICEBERG:
            options = {"table": f"chaos.{name}", "properties": self._catalog}
        elif self.kind == HTTP:
            options = {"url": f"{self.at}/{name}"}
        known: dict[str, str | type] = {UPSERT: POSTGRESQL, SOURCE: JsonFiles}
        stream.write_stream(known.get(self.kind, self.kind), name=name, key=key, **options)

    @property
    def _catalog(self) -> dict[str, str]:
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.at}/catalog.db",
            "warehouse": f"file://{self.at}/warehouse",
        }

    def prepare(self) -> None:
        """Make the tables that have to be there."""
        if self.kind in (POSTGRESQL, UPSERT):
            import psycopg

            with psycopg.connect(self.at, autocommit=True) as connection:
                connection.execute("DROP TABLE IF EXISTS rows, totals, everflow_positions")
                for name, table in _TABLES.items():
                    connection.execute(table)
                    if self.kind == UPSERT:
                        key = COLUMNS[name][0]
                        connection.execute(f"ALTER TABLE {name} ADD PRIMARY KEY ({key})")
        if self.kind == ICEBERG:
            from pyiceberg.catalog import load_catalog

            catalog = load_catalog("default", **self._catalog)
            catalog.create_namespace("chaos")
            for name, columns in COLUMNS.items():
                kinds = [pa.string() if one in ("id", "item") else pa.int64() for one in columns]
                schema = pa.schema(list(zip(columns, kinds, strict=True)))
                catalog.create_table(f"chaos.{name}", schema=schema)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """All that are there now."""
        if self.kind in (POSTGRESQL, UPSERT):
            import psycopg

            with psycopg.connect(self.at) as connection:
                found = connection.execute(f"SELECT * FROM {name}").fetchall()
            return [dict(zip(COLUMNS[name], row, strict=True)) for row in found]
        if self.kind == HTTP:
            return [json.loads(line) for line in SERVED.get(name, ())]
        if self.kind in (FUNCTION, SOURCE):
            files = Path(self.at, name).glob("*.json")
            return [row for path in files for row in json.loads(path.read_text())]
        rows: list[dict[str, Any]] = self._table(name).to_pylist()
        return rows

    def _table(self, name: str) -> pa.Table:
        folder = Path(self.at, name)
        if self.kind == DELTA:
            import deltalake

            return pa.table(deltalake.DeltaTable(folder).to_pyarrow_table())
        if self.kind == ICEBERG:
            from pyiceberg.catalog import load_catalog

            table = load_catalog("default", **self._catalog).load_table(f"chaos.{name}")
            return table.scan().to_arrow()
        import pyarrow.parquet as pq

        return pq.ParquetDataset(folder).read()


def is_kept(key: str, value: Any) -> bool:
    """A function, not a Column: a process that starts without Spark SQL starts in half the time."""
    return bool(value["n"] % LEFT_OUT)


def item(key: str, value: Any) -> str:
    """The key of the aggregate."""
    return str(value["item"])


def put_file(folder: str, rows: Sequence[dict[str, Any]]) -> None:
    """A whole file or none, of a name of its own: nothing says that rows come again."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    hidden = Path(folder, f".{uuid.uuid4()}")
    hidden.write_text(json.dumps(rows))
    hidden.rename(hidden.with_name(f"{hidden.name[1:]}.json"))


class JsonFiles(DataSource):
    """A sink as users of PySpark write it: it knows nothing of everflow."""

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        """See PySpark."""
        return JsonFilesWriter(self.options["path"])


@dataclass
class _Written(WriterCommitMessage):
    rows: list[dict[str, Any]]


class JsonFilesWriter(DataSourceStreamWriter):
    """A file at each commit."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """See PySpark."""
        return _Written([row.asDict() for row in iterator])

    def commit(self, messages: Any, batchId: int) -> None:
        """See PySpark."""
        put_file(self._path, [row for message in messages for row in message.rows])


SERVED: dict[str, list[bytes]] = {}
"""The lines that the service of this process has got, by the last name of the address."""


@contextmanager
def service() -> Iterator[str]:
    """An HTTP service that keeps each line in `SERVED`; its address."""
    SERVED.clear()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            SERVED.setdefault(self.path.rpartition("/")[2], []).extend(body.splitlines())
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def place_of(kind: str, folder: Path) -> Iterator[Place]:
    """An empty place, ready for the program; ends what it started."""
    from integration.debezium import postgres

    with ExitStack() as started:
        at = str(folder)
        if kind in (POSTGRESQL, UPSERT):
            running = started.enter_context(postgres.server())
            at = f"host=127.0.0.1 port={running.port} user={postgres.USER} dbname=postgres"
        if kind == HTTP:
            at = started.enter_context(service())
        place = Place(kind, at)
        place.prepare()
        yield place
