"""What `/metrics` says, and that its table names all of it."""

from __future__ import annotations

import time

from prometheus_client.parser import text_string_to_metric_families

from everflow import metrics as names
from everflow.observe.figures import FIGURES
from everflow.observe.http_server import exposition
from everflow.observe.observation import Observation, ObservedTask, ObservedWriter
from unit.observe.observations import FULL, STANDBY, changed


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


def test_ten_thousand_labels_are_told() -> None:
    tasks = [
        ObservedTask(task=f"0_{number}", role="standby", state="RUNNING", lag=number)
        for number in range(10_000)
    ]
    began = time.process_time()
    found = samples(changed(tasks=[*tasks, STANDBY]))
    assert time.process_time() - began < 30, "a scrape ends"
    assert sum(name == "everflow_task_state" for name, _ in found) == 10_001
