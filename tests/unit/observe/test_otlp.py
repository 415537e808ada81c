"""The figures over OTLP: those of `/metrics`, and an endpoint that is away disturbs nobody."""

from __future__ import annotations

import gzip
import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from everflow.observe.http_server import exposition
from everflow.observe.otlp import OtlpExport
from everflow.testing import wait_until
from unit.observe.observations import FULL

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")


class Receiver:
    """What a collector is: it takes requests, or refuses them."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                found = metrics_service_pb2.ExportMetricsServiceRequest.FromString(body)
                receiver.headers.append({k.lower(): v for k, v in self.headers.items()})
                receiver.requests.append(found)
                self.send_response(receiver.status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/metrics"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


def export(url: str, interval_ms: int = 50) -> OtlpExport:
    return OtlpExport(url, interval_ms, lambda: FULL, "orders", "orders-1", "1.0")


def told(request: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = {}
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                data = getattr(metric, metric.WhichOneof("data"))
                for point in data.data_points:
                    labels = frozenset((a.key, a.value.string_value) for a in point.attributes)
                    found[metric.name, labels] = getattr(point, point.WhichOneof("value"))
    return found


def test_it_says_what_metrics_says(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x")
    sent = export(receiver.url)
    wait_until(lambda: receiver.requests, 60, "a request")
    sent.close()
    expected = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(exposition(FULL).decode())
        for sample in family.samples
        if sample.value == sample.value
    }
    assert told(receiver.requests[0]) == expected
    assert receiver.headers[0]["authorization"] == "Bearer x"
    (resource,) = receiver.requests[0].resource_metrics
    about = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert about["service.name"] == "orders"
    assert about["service.instance.id"] == "orders-1"


def test_an_endpoint_that_refuses_is_said_once_and_its_return_once(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.status = 400
    with caplog.at_level(logging.INFO, "everflow"):
        sent = export(receiver.url)
        wait_until(lambda: len(receiver.requests) >= 3, 60, "three attempts")
        receiver.status = 200
        wait_until(lambda: "again" in caplog.messages[-1], 60, "a word")
        sent.close()
    assert [message.split(" to ")[0] for message in caplog.messages] == [
        "The figures cannot be sent",
        "The figures are sent",
    ]


def test_an_end_does_not_wait_for_an_endpoint_that_is_away() -> None:
    sent = export("http://127.0.0.1:9/v1/metrics", interval_ms=60_000)
    began = time.monotonic()
    sent.close()
    assert time.monotonic() - began < 30
