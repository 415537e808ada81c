"""Data sources that others wrote, from PyPI, run unchanged (note 073): all that they are to read
comes into the topic.

They are no dependency of everflow's tests: `pip install pyspark-data-sources
pyspark-root-datasource spark-rest-api-reader faker` brings them, else their tests are skipped.
"""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest

from everflow import StreamsBuilder, serdes
from everflow.testing import TopologyTestDriver

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ITEMS = "id bigint, words string"


def rows_of(kind: type, schema: str, polls: int = 3, **options: Any) -> list[dict[str, Any]]:
    """What comes into a topic in so many polls."""
    builder = StreamsBuilder()
    read = builder.read_stream if options.pop("streams", False) else builder.read
    read(kind, name="theirs", schema=schema, **options).to("rows")
    with TopologyTestDriver(builder.build()) as driver:
        for _ in range(polls):
            driver.advance_wall_clock_time(1_000)
        topic = driver.create_output_topic("rows", serdes.bytes_(), serdes.json(schema))
        return [one.value for one in topic.read_records()]


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


def test_arrow_files_of_pyspark_data_sources(tmp_path: Path) -> None:
    theirs = pytest.importorskip("pyspark_datasources")
    for at in range(3):
        ids = list(range(10 * at, 10 * at + 10))
        table = pa.table({"id": ids, "words": [f"row {one}" for one in ids]})
        with pa.ipc.new_file(tmp_path / f"{at}.arrow", table.schema) as file:
            file.write_table(table, max_chunksize=4)
    found = rows_of(theirs.ArrowDataSource, ITEMS, path=tmp_path)
    assert by_id(found) == [{"id": n, "words": f"row {n}"} for n in range(30)]


def test_fake_rows_of_pyspark_data_sources() -> None:
    theirs = pytest.importorskip("pyspark_datasources")
    pytest.importorskip("faker")
    schema = "name string, zipcode string"
    once = rows_of(theirs.FakeDataSource, schema, numRows=7)
    assert len(once) == 7
    assert all(row["name"] and row["zipcode"] for row in once)
    streamed = rows_of(theirs.FakeDataSource, schema, polls=5, numRows=3, streams=True)
    assert streamed
    assert len(streamed) % 3 == 0


def test_root_files_of_pyspark_root_datasource(tmp_path: Path) -> None:
    uproot = pytest.importorskip("uproot")
    theirs = pytest.importorskip("pyspark_root_datasource")
    with uproot.recreate(tmp_path / "events.root") as file:
        file["Events"] = {
            "id": pa.array(range(1_000)).to_numpy(),
            "energy": pa.array([n / 7 for n in range(1_000)]).to_numpy(),
        }
    options: dict[str, Any] = {"path": tmp_path / "events.root", "num_partitions": 4}
    found = rows_of(theirs.UprootDataSource, "id bigint, energy double", **options)
    assert by_id(found) == [{"id": n, "energy": n / 7} for n in range(1_000)]


PAGE = 10


class Items(http.server.BaseHTTPRequestHandler):
    """``/items?page=N``: 3 pages of ten; ``/since?after=N``: all behind N, up to ``newest``."""

    newest = 4

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(asked.query).items()}
        if asked.path == "/items":
            page = int(query.get("page", 1))
            ids = range(PAGE * (page - 1), PAGE * page) if page <= 3 else range(0)
        else:
            ids = range(int(query.get("after") or 0) + 1, self.newest + 1)
        body = json.dumps([{"id": one, "words": f"item {one}"} for one in ids]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def service() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Items) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_pages_of_spark_rest_api_reader() -> None:
    pytest.importorskip("httpx")
    theirs = pytest.importorskip("spark_rest_api_reader")
    with service() as url:
        options: dict[str, Any] = {"url": f"{url}/items", "pagination_type": "page_number"}
        found = rows_of(theirs.RestApiDataSource, ITEMS, **options)
    assert by_id(found) == [{"id": n, "words": f"item {n}"} for n in range(3 * PAGE)]


def test_what_is_new_by_spark_rest_api_reader() -> None:
    pytest.importorskip("httpx")
    theirs = pytest.importorskip("spark_rest_api_reader")
    with service() as url:
        found = rows_of(
            theirs.RestApiDataSource,
            ITEMS,
            polls=5,
            streams=True,
            url=f"{url}/since",
            stream_cursor_field="id",
            stream_cursor_param="after",
            stream_initial_value=0,
            stream_cursor_is_numeric=True,
        )
    assert by_id(found) == [{"id": n, "words": f"item {n}"} for n in range(1, 5)]
