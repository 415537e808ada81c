"""Stream writers that others wrote, from packages as they are, as sinks.

Tried: `cyber-spark-data-connectors` 0.0.8 (Splunk's collector and any REST service, for real, over
HTTP), `pyspark-data-sources` 0.1.11 (Meta's conversions, whose address is fixed: the request is
caught). Its writer for Salesforce and the former's for Azure Monitor log in over TLS at those
services, so they cannot run here. `pyspark-huggingface` 2.1.0 and `cosmosdb-spark-datasource` 1.0.0
have no stream writer.

All of them ask `TaskContext` for partition or attempt, and fail without.
"""

import http.server
import importlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from everflow import StreamsBuilder, serdes
from everflow.testing import TopologyTestDriver

pytestmark = [pytest.mark.slow, pytest.mark.spark]
PACKAGES = ("cyber-spark-data-connectors==0.0.8", "pyspark-data-sources==0.1.11")
TEXT, ORDERS = serdes.string(), serdes.json("event_name string, item string, n bigint")
RECORDS = [(f"o{n}", {"event_name": "Purchase", "item": "tea", "n": n}) for n in range(5)]
ROWS = [value for _, value in RECORDS]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module of a package from its file: what the package imports beside it, as the SDKs
    of clouds, is not installed."""
    folder = tmp_path_factory.mktemp("packages")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    subprocess.run([*command, *PACKAGES], check=True)
    packages = ("cyber_connectors", "pyspark_datasources")
    for package in packages:
        bare = sys.modules[package] = ModuleType(package)
        bare.__path__ = [str(folder / package)]
    yield importlib.import_module
    for name in [one for one in sys.modules if one.partition(".")[0] in packages]:
        del sys.modules[name]


@pytest.fixture
def service() -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """An address, and what has been posted there."""
    got: list[tuple[dict[str, str], bytes]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((dict(self.headers), body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/rows", got
    server.shutdown()
    server.server_close()


def written(source: type, **options: Any) -> None:
    """Write the records with a data source, as a program does."""
    builder = StreamsBuilder()
    builder.stream("orders", key=TEXT, value=ORDERS).write_stream(source, name="out", **options)
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("orders", TEXT, ORDERS).pipe_batch(RECORDS)


def test_splunk(packages: Any, service: Any) -> None:
    url, got = service
    source = packages("cyber_connectors.Splunk").SplunkDataSource
    written(source, url=url, token="t", batch_size=2, index="shop")
    events = [json.loads(line) for _, body in got for line in body.splitlines()]
    assert [one["event"] for one in events] == ROWS
    assert {one["index"] for one in events} == {"shop"}
    assert {headers["Authorization"] for headers, _ in got} == {"Splunk t"}
    assert len(got) == 3, "in batches of two, as its option says"


def test_a_rest_service(packages: Any, service: Any) -> None:
    url, got = service
    written(packages("cyber_connectors.RestApi").RestApiDataSource, url=url, http_header_Shop="x")
    assert [json.loads(body) for _, body in got] == ROWS


def test_meta_s_events(packages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = packages("pyspark_datasources.meta_capi")
    sent: list[Any] = []

    def post(url: str, **request: Any) -> Any:
        sent.append((url, request["json"]))
        return type("Answer", (), {"status_code": 200})

    monkeypatch.setattr(module.requests, "post", post)
    written(module.MetaCapiDataSource, access_token="t", pixel_id="7", batch_size=3)
    assert [len(body["data"]) for _, body in sent] == [3, 2]
    assert {event["event_name"] for _, body in sent for event in body["data"]} == {"Purchase"}
    assert {url.rpartition("/")[0][-1] for url, _ in sent} == {"7"}
