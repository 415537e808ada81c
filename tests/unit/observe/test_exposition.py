"""What `/metrics` and OTLP say, and that the table of figures names all of it."""

import gzip
import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from everflow import metrics as names
from everflow.observe.figures import FIGURES
from everflow.observe.http_server import exposition
from everflow.observe.observation import Observation, ObservedWriter
from everflow.observe.otlp import OtlpExport
from everflow.testing import wait_until
from unit.observe.observations import FULL, changed


def samples(seen: Observation) -> dict[tuple[str, tuple[str, ...]], float]:
    """(name, label values but the client's) -> value."""
    found = {}
    for family in text_string_to_metric_families(exposition(seen).decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("client_id") == seen.client_id
            found[sample.name, tuple(sorted(labels.values()))] = sample.value
    return found


def test_every_figure_of_the_table_is_there_and_no_other() -> None:
    assert {name for name, _ in samples(FULL)} == {figure.name for figure in FIGURES}


def test_labels_and_values() -> None:
    found = samples(FULL)
    task = "kafka_streams_stream_task_metrics_"
    assert found[f"{task}dropped_records_total", ("0", "by-item", "late")] == 6
    assert found["everflow_late_unmatched_records_total", ("0", "by-order")] == 9
    assert found["everflow_keys_checked_total", ("in",)] == 256
    assert found["everflow_keys_misplaced_total", ("in",)] == 192
    assert found[f"{task}record_lateness_avg", ("0", "1_0")] == 4
    assert found[f"{task}restoring_remaining_records_total", ("1_1", "active")] == 70
    assert found[f"{task}updating_remaining_records_total", ("1_2", "standby")] == 9
    assert (f"{task}updating_remaining_records_total", ("1_3", "warm-up")) not in found
    node = "kafka_streams_stream_processor_node_metrics_"
    assert found[f"{node}record_e2e_latency_min", ("1_0", "in")] == 40
    assert found[f"{node}record_e2e_latency_max", ("1_0", "in")] == 60
    assert found["kafka_consumer_fetch_manager_metrics_records_lag", ("0", "in")] == 3
    assert found["everflow_task_state", ("1_3", "RUNNING", "warm-up")] == 1
    assert found["everflow_store_bytes", ("1_0", "active", "counts")] == 4096
    assert found["everflow_info", ("0123456789abcdef", "1.0", "app.py:3", "orders")] == 1
    assert found["everflow_desired_instances", ()] == 3


def test_transactions_and_what_they_hold_back() -> None:
    found = samples(FULL)
    assert found["everflow_transaction_open_seconds", ("0", "orders-p-0")] == 1.5
    assert found["everflow_last_commit_timestamp_seconds", ("0",)] == 1_789_999_995
    assert found["everflow_commits_refused_total", ("0", "generation")] == 1
    assert found["everflow_producers_renewed_total", ("0",)] == 4
    assert found["everflow_stable_offset_lag", ("0", "in")] == 7
    assert found["everflow_stable_offset_lag", ("1", "in")] == 0
    assert found["everflow_stable_offset_held_seconds", ("0", "in")] == 2.5


def test_what_is_not_known_is_left_out_or_nan() -> None:
    untold = [ObservedWriter(thread=0, transactional_id="orders-p-0")]
    found = samples(changed(desired_instances=None, members=None, counters={}, writers=untold))
    assert ("everflow_transaction_open_seconds", ("0", "orders-p-0")) not in found
    assert ("everflow_desired_instances", ()) not in found
    assert found["everflow_records_lag", ()] != found["everflow_records_lag", ()]


def test_names_with_every_character_pass() -> None:
    odd = 'a"b\\c\nd\u00e9'
    found = samples(changed(series={names.SENT: {(odd, odd): 1}}))
    assert found["kafka_streams_stream_topic_metrics_records_produced_total", (odd, odd)] == 1


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


def test_each_refusal_is_said_once(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
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
