"""One instance of the count that notes what it does (`bench.events`); its twin is `java/CountBench.java` with `--events`.

`python -m bench.apps.instance_app --events FILE --application-id ID --bootstrap-servers HOST:PORT --set KEY=VALUE ...`
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from pathlib import Path
from typing import Any

from bench.apps.count_app import builder
from everflow import KafkaStreams
from everflow.records import TaskId
from everflow.runtime.client_state import ClientState
from everflow.runtime.restoration import RestoreProgress

TASKS_POLL_S = 0.05
LAG_EVERY_POLLS = 20


class Events:
    """Writes the lines; also a `RestoreListener`. All methods are thread-safe."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self._lock = threading.Lock()

    def write(self, event: str, **fields: Any) -> None:
        """One line with the present time."""
        with self._lock:
            self._file.write(json.dumps({"at_ms": time.time_ns() / 1e6, "event": event, **fields}) + "\n")
            self._file.flush()

    def state(self, new: ClientState, old: ClientState) -> None:
        """A state listener."""
        print(f"STATE {old.name} -> {new.name}", flush=True)
        self.write("state", state=new.name)

    def restore_start(self, progress: RestoreProgress) -> None:
        """Noted."""
        self.write("restore_start", partition=progress.task.partition)

    def batch_restored(self, progress: RestoreProgress, records: int) -> None:
        """Start and end are enough."""

    def restore_end(self, progress: RestoreProgress) -> None:
        """Noted."""
        self.write("restore_end", partition=progress.task.partition, records=progress.records)

    def restore_suspended(self, progress: RestoreProgress, reason: str) -> None:
        """Noted; nobody waits for it."""
        self.write("restore_suspended", partition=progress.task.partition, reason=reason)

    def follow_tasks(self, streams: KafkaStreams) -> None:
        """Ask for the tasks again and again; for a daemon thread."""
        before: dict[str, list[str]] = {}
        polls = 0
        while True:
            time.sleep(TASKS_POLL_S)
            tasks = tasks_of(streams)
            if tasks != before:
                if not before:
                    self.write("joined")
                before = tasks
                self.write("tasks", **tasks)
            polls += 1
            if polls % LAG_EVERY_POLLS == 0:
                self.write("lag", records=lag_of(streams))


def tasks_of(streams: KafkaStreams) -> dict[str, list[str]]:
    """The tasks by role; empty until the instance is a member."""
    active: list[TaskId] = [task.id for task in streams._running_tasks()]
    return {"active": sorted(map(str, active)), "standby": [], "warmup": []} if active else {}


def lag_of(streams: KafkaStreams) -> int:
    """Records that the furthest copy lacks."""
    return 0


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
        **{"application.id": options.application_id, "bootstrap.servers": options.bootstrap_servers, **settings},
    )
    streams.set_state_listener(events.state)
    streams.set_global_state_restore_listener(events)
    threading.Thread(target=events.follow_tasks, args=(streams,), name="bench-tasks", daemon=True).start()
    streams.run()


if __name__ == "__main__":
    main()
