"""What `/status`, the probes and the pages say of tasks, transactions and instances."""

import gzip
import json
import logging
import math
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from everflow import metrics as names
from everflow.metrics import Labels, Metrics, RecentlySeen, Seen
from everflow.observe.desired_instances import DesiredInstances, Load, ScalingRules, wanted
from everflow.observe.figures import FIGURES
from everflow.observe.http_server import exposition
from everflow.observe.observation import (
    Observation,
    ObservedThread,
    ObservedWriter,
    StableLag,
    live,
    observation_in,
    ready,
    status_of,
    transactions,
)
from everflow.observe.otlp import OtlpExport
from everflow.observe.page.view import with_rates
from everflow.testing import wait_until
from unit.observe.observations import ACTIVE, FULL, LAKE, RESTORING, STANDBY, changed
from unit.observe.page.page_facts import counted, facts


def told(**values: Any) -> dict[str, Any]:
    return dict(json.loads(json.dumps({**status_of(FULL), **values})))


def test_another_instance_reads_what_a_page_shows_of_others() -> None:
    read = observation_in(told())
    assert (read.application_id, read.state, read.members) == ("orders", "RUNNING", 2)
    assert (read.lags, read.times) == (FULL.lags, FULL.times)
    assert [(task.task, task.role, task.lag, task.trouble) for task in read.tasks] == [
        (task.task, task.role, task.lag, task.trouble) for task in FULL.tasks
    ]
    assert [(thread.number, thread.busy) for thread in read.threads] == [(0, 0.25)]
    assert read.counters[names.LAG] == 3.0


def test_what_is_not_known_stays_unknown() -> None:
    read = observation_in(json.loads(json.dumps(status_of(changed(counters={}, members=None)))))
    assert math.isnan(read.counters[names.LAG])
    assert read.members is None


def test_an_older_version_tells_less() -> None:
    old = told()
    for name in ("lags", "consumed", "silent_s", "transactions", "times"):
        del old[name]
    assert observation_in(old).lags == {}


@pytest.mark.parametrize(
    "status",
    [
        [],
        None,
        "RUNNING",
        {},
        told(tasks=[{"task": "0_0"}]),
        told(tasks=[{**told()["tasks"][0], "lag": "many"}]),
        told(tasks=[{**told()["tasks"][0], "task": {"a": 1}}]),
        told(tasks=7),
        told(threads=[{**told()["threads"][0], "busy": None}]),
        told(lag="1x"),
        told(lag=math.nan),
        told(consumed=math.inf),
        told(consumed=10**400),
        told(tasks=[{**told()["tasks"][0], "rate": math.inf}]),
        told(lags=[["in", 0, 3]]),
    ],
)
def test_what_is_no_status_is_refused(status: Any) -> None:
    with pytest.raises(ValueError, match=r"no status|could not convert"):
        observation_in(status)


DEAD_THREAD = [ObservedThread(number=1, alive=False, tasks=0)]


@pytest.mark.parametrize(
    ("state", "alive", "is_ready"),
    [
        ("CREATED", True, False),
        ("REBALANCING", True, True),
        ("RUNNING", True, True),
        ("PENDING_SHUTDOWN", True, False),
        ("NOT_RUNNING", False, False),
        ("PENDING_ERROR", False, False),
        ("ERROR", False, False),
    ],
)
def test_a_state_decides(state: str, alive: bool, is_ready: bool) -> None:
    seen = changed(state=state)
    assert live(seen).ok is alive
    assert ready(seen).ok is is_ready


def test_one_that_restores_is_alive_and_not_ready() -> None:
    verdict = ready(FULL)
    assert live(FULL).ok
    assert not verdict.ok
    assert re.fullmatch("active .*: 1_1", verdict.why)
    many = changed(tasks=[RESTORING] * 7)
    assert ready(many).why.endswith("1_1, 1_1, 1_1, 1_1, 1_1 and 2 more")


def test_a_stream_thread_that_ended_is_told() -> None:
    verdict = live(changed(threads=DEAD_THREAD))
    assert not verdict.ok
    assert re.fullmatch("stream threads .*: 1", verdict.why)
    assert live(changed(threads=DEAD_THREAD, state="REBALANCING")).ok, "it starts"


def test_what_stopped_it_is_told() -> None:
    assert live(changed(state="ERROR", error="[EF-X] broken")).why == "state ERROR: [EF-X] broken"


def test_one_with_standbys_only_is_ready_once_it_has_joined() -> None:
    assert ready(changed(tasks=[STANDBY])).ok
    assert not ready(changed(tasks=[], state="REBALANCING", members=None)).ok
    assert not ready(changed(threads=[], state="REBALANCING")).ok


RUNNING = replace(ACTIVE, lag=4_000, remaining_s=0.0)
COPY = replace(STANDBY, rate=7.0, remaining_s=1.5)


def rates(lag: int | None, before: int | None) -> tuple[float, float | None]:
    """Of the active task, which has processed 2,000 records in ten seconds."""
    old = changed(tasks=[replace(RUNNING, lag=before)])
    new = changed(tasks=[replace(RUNNING, lag=lag)])
    counts: dict[Labels, float] = {
        ("0", "1_0", "in"): 1_500.0,
        ("1", "1_0", "other"): 600.0,
        ("0", "1_1", "in"): 9.0,
    }
    looks = facts(
        counted(new, {names.PROCESSED: counts}),
        counted(old, {names.PROCESSED: {("0", "1_0", "in"): 100.0}}),
    )
    (task,) = with_rates(looks)
    return task.rate, task.remaining_s


@pytest.mark.parametrize(
    ("lag", "before", "remaining_s"),
    [
        (4_000, 5_000, 40.0),
        (4_000, 4_000, None),
        (4_000, 3_000, None),
        (4_000, None, None),
        (None, 4_000, None),
        (400, 300, 0.0),
        (0, 0, 0.0),
    ],
)
def test_an_active_task_tells_what_it_processes_and_until_when(
    lag: int | None, before: int | None, remaining_s: float | None
) -> None:
    assert rates(lag, before) == (200.0, remaining_s)


def test_what_is_copied_keeps_its_copys_rate() -> None:
    tasks = [COPY, RESTORING]
    assert with_rates(facts(changed(tasks=tasks), changed(tasks=tasks))) == tasks


def test_one_look_tells_no_rate() -> None:
    assert with_rates(facts(changed(tasks=[RUNNING]))) == [RUNNING]


def test_one_that_was_restored_before_has_no_time_yet() -> None:
    """Its lag was of its changelogs."""
    old = changed(tasks=[replace(RUNNING, state="RESTORING", lag=90_000)])
    (task,) = with_rates(facts(changed(tasks=[RUNNING]), counted(old, {})))
    assert task.rate == 1.2
    assert task.remaining_s is None


def test_a_thread_has_its_writer_its_last_commit_and_its_aborts_by_cause() -> None:
    found = transactions(FULL)
    assert found["threads"] == [
        {
            "thread": 0,
            "transactional_id": "orders-p-0",
            "state": "Ongoing",
            "open_s": 1.5,
            "committed_ms": 1_789_999_995_000,
            "aborted": {"generation": 1, "worker": 3},
            "fenced": 2,
            "renewed": 4,
        }
    ]
    assert (found["told_s"], found["ended_of_others"]) == (1.0, 0.0)


def test_one_that_has_committed_nothing_and_of_which_nothing_is_told_has_no_numbers() -> None:
    seen = changed(threads=[ObservedThread(number=3, alive=True, tasks=0)], answer_age_s=None)
    (row,) = transactions(seen)["threads"]
    assert (row["open_s"], row["state"], row["committed_ms"]) == (None, None, None)
    assert (row["aborted"], row["fenced"], row["renewed"]) == ({}, 0.0, 0.0)


def test_what_is_held_back_for_the_longest_time_is_first_and_what_is_not_is_left_out() -> None:
    held = {
        ("b", 0): StableLag(5, 10, 3.0),
        ("a", 0): StableLag(9, 20, 3.0),
        ("c", 1): StableLag(1, 30, 60.0),
        ("d", 0): StableLag(0, 40, 0.0),
    }
    rows = transactions(changed(stable_lags=held))["held_back"]
    assert [(row["topic"], row["records"], row["stable"]) for row in rows] == [
        ("c", 1, 30),
        ("a", 9, 20),
        ("b", 5, 10),
    ]


RULES = ScalingRules(target=0.7, drain_s=100, up_after_s=10, down_after_s=60)


def load(
    busy: float = 0.35,
    lag: float | None = 0,
    rate: float = 1_000,
    restoring: bool = False,
    members: int = 2,
    tasks: int = 8,
) -> Load:
    return Load(busy, lag, rate, restoring, members, tasks)


@pytest.mark.parametrize(
    ("seen", "number"),
    [
        (load(busy=0.35), 1),
        (load(busy=0.7), 2),
        (load(busy=0.72), 2),
        (load(busy=1.0), 3),
        # 100,000 records at 1,000/s: as much again is needed for 100 s
        (load(busy=1.0, lag=100_000), 5),
        # the same rate while half busy: it can do 2,000/s
        (load(busy=0.5, lag=100_000), 3),
        (load(busy=1.0, lag=10_000_000), 8),
        (load(busy=0.0, rate=0), 1),
        (load(busy=0.0, rate=0, lag=5), None),
        (load(lag=None), None),
        (load(lag=math.nan), None),
        (load(restoring=True), None),
    ],
)
def test_what_a_moment_asks_for(seen: Load, number: int | None) -> None:
    assert wanted(seen, RULES) == number


def asked_for(*steps: tuple[float, Load]) -> list[int]:
    desired = DesiredInstances(rules=RULES)
    return [desired.update(seen, at * 1000) for at, seen in steps]


def test_it_begins_with_what_there_is_and_goes_up_after_a_while() -> None:
    busy = load(busy=1.0)
    assert asked_for((0, busy), (9, busy), (10, busy), (20, busy)) == [2, 2, 3, 3]


def test_down_it_goes_later_and_to_the_largest_of_the_time() -> None:
    idle, half = load(busy=0.1, members=4), load(busy=0.5, members=4)
    assert asked_for((0, idle), (30, half), (59, idle), (60, idle)) == [4, 4, 4, 3]


def test_a_peak_is_no_trend() -> None:
    busy, calm = load(busy=1.0), load(busy=0.7)
    assert asked_for((0, busy), (5, calm), (10, busy), (19, busy), (20, busy)) == [2, 2, 2, 2, 3]


def test_while_tasks_are_restored_nothing_changes() -> None:
    busy, restoring = load(busy=1.0), load(restoring=True)
    assert asked_for((0, busy), (9, restoring), (11, busy), (20, busy), (21, busy)) == [
        2,
        2,
        2,
        2,
        3,
    ]


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1e7), st.integers(1, 9)), min_size=1))
def test_it_stays_between_one_and_the_tasks(drawn: list[tuple[float, float, int]]) -> None:
    desired = DesiredInstances(rules=RULES)
    for number, (busy, lag, members) in enumerate(drawn):
        seen = load(busy=busy, lag=lag, members=members)
        assert 1 <= desired.update(seen, number * 7_000) <= max(8, members)


def test_values_go_after_a_minute_at_the_latest() -> None:
    recent = RecentlySeen()
    assert recent.at(0) is None
    recent.add(Seen(2, 6.0, 1.0, 5.0), 1_000)
    recent.add(Seen(1, 9.0, 9.0, 9.0), 31_000)
    assert recent.at(59_999) == Seen(3, 15.0, 1.0, 9.0)
    assert recent.at(60_000) == Seen(1, 9.0, 9.0, 9.0)
    assert recent.at(90_000) is None


def test_a_register_keeps_labels_apart() -> None:
    metrics = Metrics()
    metrics.saw("late", {("a",): Seen(1, 2.0, 2.0, 2.0), ("b",): Seen(1, 3.0, 3.0, 3.0)}, 0)
    metrics.saw("late", {("a",): Seen(1, 4.0, 4.0, 4.0)}, 10)
    assert metrics.recent("late", 20) == {
        ("a",): Seen(2, 6.0, 2.0, 4.0),
        ("b",): Seen(1, 3.0, 3.0, 3.0),
    }
    assert metrics.recent("late", 100_000) == {}
    metrics.add_series("n", {("a",): 1, ("b",): 2})
    metrics.add_series("n", {("a",): 1})
    assert metrics.series() == {"n": {("a",): 2, ("b",): 2}}


# What `/metrics` and OTLP say, and that the table of figures names all of it.


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


def test_connectors_by_state() -> None:
    found = samples(FULL)
    assert found["everflow_connector_paused", ("lake",)] == 1
    assert found["everflow_connector_tasks", ("FAILED", "lake")] == 1
    assert found["everflow_connector_tasks", ("PAUSED", "lake")] == 1
    assert found["everflow_connector_lag", ("lake",)] == 73
    assert found["everflow_connector_rows_total", ("lake",)] == 11
    assert found["everflow_connector_errors_total", ("lake",)] == 2


def test_another_instance_tells_of_its_connectors() -> None:
    status = status_of(FULL)
    assert observation_in(status).connectors == [LAKE]
    del status["connectors"], status["tasks"][0]["paused"]  # an earlier release
    assert observation_in(status).connectors == []


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


def exposed_told(request: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
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
    assert exposed_told(receiver.requests[0]) == expected
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
    refused, taken = caplog.messages
    assert " cannot be sent to " in refused
    assert " are sent to " in taken


def test_an_end_does_not_wait_for_an_endpoint_that_is_away() -> None:
    sent = export("http://127.0.0.1:9/v1/metrics", interval_ms=60_000)
    began = time.monotonic()
    sent.close()
    assert time.monotonic() - began < 30
