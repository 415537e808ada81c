"""One instance of the counts and copies that keeps an assignment log (`chaos.assignment_log`).

``python -m chaos.elastic_instance EVENTS SETTINGS``. Standard input takes one line: ``leave``
(drain, leave the group, end) or ``bounce`` (end silently, the tasks wait for the return). At its
end the instance ends silently too: nothing outlives the harness.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench.apps.instance_app import Events  # noqa: E402
from everflow import KafkaStreams  # noqa: E402
from everflow.instance.assembly import ClusterPorts  # noqa: E402
from everflow.instance.client_state import ENDED, ClientState, IllegalStateError  # noqa: E402
from everflow.instance.copies.known_copies import Copies  # noqa: E402
from everflow.instance.instance import Instance  # noqa: E402
from everflow.instance.thread.stream_thread import Job  # noqa: E402
from everflow.membership.member import Assigned, Lost, MemberEvent, Revoked, Roles  # noqa: E402
from everflow.protocol.messages import BatchRequest, BatchResult  # noqa: E402
from integration.crash.crash_topologies import counts_and_copies  # noqa: E402

COPIES_EVERY_S = 0.5
CLOSE_S = 150.0
LEAVE, BOUNCE = "leave", "bounce"


class LoggedJob:
    """A job that notes when each micro-batch began and ended, whose it was and what became of
    it."""

    def __init__(self, job: Job, events: Events) -> None:
        self._job, self._events = job, events

    def run(self, request: BatchRequest, serves: Callable[[int], bool]) -> BatchResult:
        """Noted when it ends, also where it fails."""
        tasks = [str(context.task) for context in request.tasks]
        began_ms = time.time_ns() / 1e6
        outcome = {"committed": False, "reason": "failed", "records": 0}
        try:
            result = self._job.run(request, serves)
            outcome = {
                "committed": result.committed,
                "reason": result.reason,
                "records": result.counts.get("in", 0),
            }
            return result
        finally:
            self._events.write("batch", tasks=tasks, began_ms=began_ms, **outcome)

    def close(self) -> None:
        """Close the job."""
        self._job.close()


class LoggedInstance(Instance):
    """Notes what the group decided."""

    def __init__(self, events: Events, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._log = events

    def on_member_event(self, event: MemberEvent) -> None:
        """See `Instance`."""
        if isinstance(event, Assigned):
            self._log.write(
                "assigned",
                generation=event.generation,
                tasks=_names(event.tasks),
                sums=_sums(self.copies),
            )
        elif isinstance(event, (Revoked, Lost)):
            self._log.write(type(event).__name__.lower(), tasks=_names(event.tasks))
        elif isinstance(event, Roles):
            roles = {"standby": _names(event.standby), "warmup": _names(event.warmup)}
            self._log.write(
                "roles", generation=event.generation, owned=_names(self.member.owned()), **roles
            )
        super().on_member_event(event)


class LoggedStreams(KafkaStreams):
    """Notes what the group decided, the copies at that moment, and every micro-batch."""

    def __init__(self, events: Events, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._log = events

    def _wired(
        self, ports: ClusterPorts, kind: Callable[..., Instance] = LoggedInstance
    ) -> Instance:
        open_job = ports.open_job

        def logged(thread: int) -> Job:
            return LoggedJob(open_job(thread), self._log)

        ports.open_job = logged
        return super()._wired(ports, partial(kind, self._log))

    def follow_copies(self) -> None:
        """Note the copies again and again; for a daemon thread."""
        pause = threading.Event()
        while not pause.wait(COPIES_EVERY_S):
            if self._life.instance is not None:
                self._log.write(
                    "copies",
                    running=_names([task.id for task in self._life.instance.running_tasks()]),
                    sums=_sums(self._life.instance.copies),
                )


def _sums(copies: Copies) -> Mapping[str, int]:
    """Every copy here that does not run active, as the group would be told."""
    return {str(task): total for task, total in sorted(copies.offset_sums().items())}


def _names(tasks: Any) -> list[str]:
    return [str(task) for task in sorted(tasks)]


def start(streams: KafkaStreams) -> None:
    """Start it, unless it was told to end before it has begun: then it has ended in order."""
    try:
        streams.start()
    except IllegalStateError:
        if streams.state not in ENDED:
            raise


def main(path: Path, settings: dict[str, Any]) -> int:
    """Run until told to end; 0 after a clean end."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    logging.getLogger("kafka").setLevel(logging.WARNING)
    events = Events(path)
    streams = LoggedStreams(
        events, counts_and_copies(settings["application.id"]).build(), **settings
    )
    streams.set_state_listener(events.state)
    streams.set_global_state_restore_listener(events)
    for follow in (lambda: events.follow_tasks(streams), streams.follow_copies):
        threading.Thread(target=follow, daemon=True).start()
    told: list[str] = []

    def listen() -> None:
        told.append(sys.stdin.readline().strip())
        streams.close(CLOSE_S, leave_group=told[0] == LEAVE)

    threading.Thread(target=listen, daemon=True).start()
    start(streams)
    pause = threading.Event()
    while streams.state not in ENDED:
        pause.wait(0.1)
    return 0 if streams.state is ClientState.NOT_RUNNING else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
