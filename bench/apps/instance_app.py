"""One instance of the count that notes what it does (`bench.events`); its twin is
`java/CountBench.java` with `--events`.

`python -m bench.apps.instance_app --events FILE --application-id ID --bootstrap-servers SERVERS`,
and `--set KEY=VALUE` as often as wanted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any

from bench.apps.count_app import builder
from everflow import KafkaStreams
from everflow.instance.client_state import ClientState
from everflow.instance.restore.listeners import RestoreProgress
from everflow.instance.tasks.task import TaskRole, TaskState

TASKS_POLL_S = 0.05
LAG_EVERY_POLLS = 20
PROGRESS_EVERY_S = 0.1
ROLES = {TaskRole.ACTIVE: "active", TaskRole.STANDBY: "standby", TaskRole.WARMUP: "warmup"}


class Events:
    """Writes the lines; also a `RestoreListener`. All methods are thread-safe."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self._lock = threading.Lock()
        self._progress_at = 0.0

    def write(self, event: str, **fields: Any) -> None:
        """One line with the present time."""
        with self._lock:
            self._file.write(
                json.dumps({"at_ms": time.time_ns() / 1e6, "event": event, **fields}) + "\n"
            )
            self._file.flush()

    def state(self, new: ClientState, old: ClientState) -> None:
        """A state listener."""
        print(f"STATE {old.name} -> {new.name}", flush=True)
        self.write("state", state=new.name)

    def restore_start(self, progress: RestoreProgress) -> None:
        """Noted."""
        self.write("restore_start", partition=progress.task.partition)

    def batch_restored(self, progress: RestoreProgress, records: int) -> None:
        """What the listener says of rate and remaining time, some times a second."""
        now = time.monotonic()
        if now - self._progress_at >= PROGRESS_EVERY_S:
            self._progress_at = now
            self.write(
                "restore_progress",
                partition=progress.task.partition,
                fraction=progress.fraction,
                rate=progress.rate,
                remaining_s=progress.remaining_s,
            )

    def restore_end(self, progress: RestoreProgress) -> None:
        """Noted."""
        self.write("restore_end", partition=progress.task.partition, records=progress.records)

    def restore_suspended(self, progress: RestoreProgress, reason: str) -> None:
        """Noted; nobody waits for it."""
        self.write("restore_suspended", partition=progress.task.partition, reason=reason)

    def follow_tasks(self, streams: KafkaStreams) -> None:
        """Ask for the tasks again and again; for a daemon thread."""
        joined = False
        before: dict[str, list[str]] = {}
        for poll in itertools.count():
            time.sleep(TASKS_POLL_S)
            if not joined and _is_member(streams):
                joined = True
                self.write("joined")
            tasks = _tasks_of(streams)
            if tasks != before:
                before = tasks
                self.write("tasks", **tasks)
            lag = _lag_of(streams)
            if poll % LAG_EVERY_POLLS == 0 and lag is not None:
                self.write("lag", records=lag)


def _is_member(streams: KafkaStreams) -> bool:
    """Whether a rebalance with this instance has ended; no figure of the instance says so."""
    instance = streams._life.instance
    return instance is not None and instance.member.metadata().generation >= 0


def _tasks_of(streams: KafkaStreams) -> dict[str, list[str]]:
    """The tasks by role; a task counts as active once it processes."""
    tasks: dict[str, list[str]] = {name: [] for name in ROLES.values()}
    for task, status in streams.all_tasks().items():
        if status.role is not TaskRole.ACTIVE or status.state is TaskState.RUNNING:
            tasks[ROLES[status.role]].append(str(task))
    return tasks


def _lag_of(streams: KafkaStreams) -> int | None:
    """Records that the copy furthest behind lacks; None while that is not known of all."""
    lags = [
        status.lag for status in streams.all_tasks().values() if status.role is not TaskRole.ACTIVE
    ]
    return None if None in lags else max((lag for lag in lags if lag is not None), default=0)


def main() -> None:
    """Run until SIGTERM, which makes the instance leave the group."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--application-id", required=True)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    settings = dict(setting.split("=", 1) for setting in options.set)
    events = Events(options.events)
    streams = KafkaStreams(
        builder().build(),
        **{
            "application.id": options.application_id,
            "bootstrap.servers": options.bootstrap_servers,
            **settings,
        },
    )
    streams.set_state_listener(events.state)
    streams.set_global_state_restore_listener(events)
    threading.Thread(
        target=events.follow_tasks, args=(streams,), name="bench-tasks", daemon=True
    ).start()
    streams.run()


if __name__ == "__main__":
    main()
