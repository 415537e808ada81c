"""Observations for tests: one with everything in it, and changes of it."""

from dataclasses import replace
from typing import Any

from everflow import metrics as names
from everflow.metrics import Seen
from everflow.observe.observation import (
    DiskSpace,
    Observation,
    ObservedConnector,
    ObservedStore,
    ObservedTask,
    ObservedThread,
    ObservedTime,
    ObservedWriter,
    StableLag,
)

ACTIVE = ObservedTask(
    task="1_0",
    role="active",
    state="RUNNING",
    lag=3,
    thread=0,
    trouble="ValueError: bad (once in 2 s)",
    stores=[ObservedStore(name="counts", bytes=4096)],
)
RESTORING = ObservedTask(task="1_1", role="active", state="RESTORING", lag=70, remaining_s=2.5)
STANDBY = ObservedTask(task="1_2", role="standby", state="RUNNING", lag=9)
WARMUP = ObservedTask(task="1_3", role="warm-up", state="RUNNING", lag=None)
GLOBAL = ObservedTask(task="2_0", role="global", state="RUNNING", lag=0)
LAKE = ObservedConnector(
    name="lake",
    kind="sink",
    what="DeltaSink",
    paused=True,
    tasks={"1_0": "FAILED", "1_1": "PAUSED"},
    lag=73,
    rows=500.0,
    errors=2.0,
    error="Sink lake: no answer at app.py:9",
    failed_ms=1_789_999_990_000,
)
FULL = Observation(
    application_id="orders",
    client_id="orders-1",
    version="1.0",
    topology="0123456789abcdef",
    program="app.py:3",
    state="RUNNING",
    state_number=2,
    threads=[ObservedThread(number=0, alive=True, tasks=1, busy=0.25, trouble="bad")],
    tasks=[ACTIVE, RESTORING, STANDBY, WARMUP, GLOBAL],
    counters={names.LAG: 3.0, names.DEAD_LETTERS: 4, names.RESTORED_RECORDS: 5},
    series={
        names.PROCESSED: {("0", "1_0", "in"): 12},
        names.BATCHES: {("0",): 2},
        names.BATCH_SECONDS: {("0", "read"): 0.5},
        names.BUSY_SECONDS: {("0",): 0.75},
        names.FAILED_BATCHES: {("0", "aborted"): 1, ("0", "migrated"): 2, ("0", "worker"): 3},
        names.REFUSED_COMMITS: {("0", "generation"): 1},
        names.RENEWED_PRODUCERS: {("0",): 4},
        names.LAST_COMMIT: {("0",): 1_789_999_995_000},
        names.DROPPED: {("0", "by-item", "late"): 6},
        names.UNMATCHED_LATE: {("0", "by-order"): 9},
        names.KEYS_CHECKED: {("in",): 256},
        names.KEYS_MISPLACED: {("in",): 192},
        names.LEFT_OUT: {("ValueError", "by-item", "in"): 2},
        names.SENT: {("out", "results"): 7},
        names.SENT_BYTES: {("out", "results"): 700},
        names.CONNECTOR_ROWS: {("lake",): 11},
        names.CONNECTOR_BYTES: {("lake",): 1_100},
        names.CONNECTOR_SECONDS: {("lake",): 1.25},
        names.CONNECTOR_ERRORS: {("lake",): 2},
        names.STORE_PUTS: {("1_0", "counts"): 8},
    },
    recent={
        names.BATCH_LATENCY: {("0",): Seen(2, 30.0, 10.0, 20.0)},
        names.COMMIT_LATENCY: {("0",): Seen(2, 3.0, 1.0, 2.0)},
        names.RECORD_LATENESS: {("0", "1_0"): Seen(2, 8.0, 0.0, 8.0)},
        names.RECORD_LATENCY: {("1_0", "in"): Seen(2, 100.0, 40.0, 60.0)},
    },
    samples={("ValueError", "by-item", "in"): "in-0@17 (ValueError: bad)"},
    misplaced_keys={"in": "in: 192 of 256 keys lie elsewhere. Say partitioner='crc32'"},
    lags={("in", 0): 3},
    writers=[ObservedWriter(thread=0, transactional_id="orders-p-0", state="Ongoing", open_s=1.5)],
    stable_lags={("in", 0): StableLag(7, 100, 2.5), ("in", 1): StableLag(0, 50, 0.0)},
    answer_age_s=1.0,
    execution_paths={"Arrow": 3},
    members=2,
    application_tasks=4,
    desired_instances=3,
    disk=DiskSpace(1_000_000, 250_000),
    connectors=[LAKE],
    times=[
        ObservedTime(subtopology=0),
        ObservedTime(
            subtopology=1,
            ms=1_789_999_000_000,
            lag_s=1_000.0,
            held_by="in-1",
            behind_s=840.0,
            since_ms=1_789_999_990_000,
        ),
    ],
)
WHOLE = replace(FULL, tasks=[ACTIVE, STANDBY])


def changed(seen: Observation = WHOLE, **values: Any) -> Observation:
    return replace(seen, **values)
