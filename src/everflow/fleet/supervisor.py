"""A process beside a Spark task: it starts the slot's instance on this host, and ends it.

It is no part of the task because the task cannot end anything: Spark's executor takes its Python
worker with it, at once. Standard input: the order, one line; after that its end says that the task
is gone. Standard output: the outcome, one line. Runs as ``python -m everflow.fleet.supervisor``.
"""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
import zipfile
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from everflow.autoscale import STATUS_S, TAIL_LINES, AutoscaledInstance, start_instance
from everflow.client.direct import asked
from everflow.fleet.decision import (
    MOST_CHARACTERS,
    MOST_LINES,
    STOP_S,
    TOKEN_HEADER,
    Act,
    Report,
    SlotOrder,
    SlotOutcome,
    SupervisorState,
    Wanted,
    instance_environment,
    next_act,
    target_order,
)

log = logging.getLogger("everflow.fleet")

REPORT_S = 1.0
POST_S = 5.0
EARLIER_S = STOP_S + 15.0
"""An earlier process of the slot has so long to end before it is killed."""
NOBODY = 1
"""The exit code of an instance that was never started."""

Post = Callable[[Report], Wanted]
"""Tells the driver, and gets what it wants. OSError, ValueError: no answer."""


class LogTail:
    """The whole lines that were added to a file; ``last`` are the last ones."""

    def __init__(self, path: Path) -> None:
        self.last: deque[str] = deque(maxlen=TAIL_LINES)
        self._path = path
        self._at = path.stat().st_size if path.exists() else 0

    def new_lines(self) -> list[str]:
        with suppress(OSError), self._path.open("rb") as file:
            file.seek(self._at)
            text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._at += len(whole)
            lines = [line[:MOST_CHARACTERS] for line in whole.decode(errors="replace").splitlines()]
            self.last.extend(lines)
            return lines
        return []


@dataclass(eq=False)
class Supervisor:
    """Used by one thread. ``task_gone`` is set when Spark's task is gone."""

    order: SlotOrder
    task_gone: threading.Event
    post: Post
    start: Callable[..., AutoscaledInstance] = start_instance
    clock: Callable[[], float] = time.monotonic
    host: str = field(default_factory=socket.gethostname)
    pause_s: float = REPORT_S
    _heard: bool = False
    _wanted: Wanted = Wanted.run
    _ending: Wanted | None = None
    _ending_s: float = 0.0
    _unsent: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        folder = Path(os.path.expandvars(self.order.folder)).expanduser()
        self._folder = folder / f"slot-{self.order.slot}"
        self._answered_s = self.clock()

    def run(self) -> SlotOutcome:
        """Run until the instance has ended, or none is wanted. OSError: the folder is unusable."""
        program = Path(self.order.program).read_bytes()  # it goes with the executor
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self._folder / "lock").open("a+") as lock:
            if not self._owned(lock):
                return self._not_started()
            tail = LogTail(self._folder / "instance.log")
            instance = self._instance(program, lock)
            lock.truncate(0)
            lock.write(str(instance.process.pid))
            lock.flush()
            return self._kept(instance, tail)

    def _owned(self, lock: io.TextIOWrapper) -> bool:
        """True once it owns the slot's folder; False if no instance is wanted any more.
        The instance holds the lock, too: one whose supervisor was killed is ended first."""
        phase, blocked_s = "comes", float("inf")
        while True:
            self._report(phase)
            if target_order(self._state(None)) is not Wanted.run:
                return False
            if self._heard:
                with suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                phase, blocked_s = "waits", min(blocked_s, self.clock())
            if self.clock() - blocked_s > EARLIER_S:
                lock.seek(0)
                with suppress(ProcessLookupError, ValueError):
                    os.killpg(int(lock.read()), signal.SIGKILL)
            self._pause()

    def _not_started(self) -> SlotOutcome:
        if self._heard or self.task_gone.is_set():
            return SlotOutcome(0)
        return SlotOutcome(
            NOBODY,
            f"The driver of the fleet did not answer {self.host} at {self.order.url}: open that "
            f"port to the hosts of the cluster (everflow fleet --listen HOST:PORT says which)",
        )

    def _instance(self, program: bytes, lock: io.TextIOWrapper) -> AutoscaledInstance:
        code, settings = self._folder / "program", self._folder / "settings"
        for folder in (code, settings):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
        with zipfile.ZipFile(io.BytesIO(program)) as packed:
            packed.extractall(code)
        for key, value in self.order.settings.items():
            (settings / key).write_text(value)
        return self.start(
            self.order.slot,
            self.order.target,
            ["--threads", str(self.order.threads), "--settings-folder", str(settings)],
            self._folder,
            cwd=code,
            env=instance_environment(os.environ, sys.executable),
            pass_fds=[lock.fileno()],
        )

    def _kept(self, instance: AutoscaledInstance, tail: LogTail) -> SlotOutcome:
        while True:
            act = next_act(self._state(instance.code), self.order.drain_s)
            if act is Act.done:
                shutil.rmtree(self._folder / "settings", ignore_errors=True)
                self._report("ended", instance, tail)
                return SlotOutcome(instance.code or 0, "\n".join(tail.last))
            self._do(act, instance)
            self._pause()
            self._report("runs" if self._ending is None else "ends", instance, tail)

    def _do(self, act: Act, instance: AutoscaledInstance) -> None:
        if act is Act.kill:
            instance.kill()
        elif act in (Act.drain, Act.stop):
            self._ending = Wanted.drain if act is Act.drain else Wanted.stop
            self._ending_s = self.clock()
            if act is Act.stop or not _accepted_drain(instance.address):
                instance.end()

    def _state(self, code: int | None) -> SupervisorState:
        now_s = self.clock()
        return SupervisorState(
            executor_there=not self.task_gone.is_set(),
            silent_s=now_s - self._answered_s,
            wanted=self._wanted,
            ending=self._ending,
            ending_s=now_s - self._ending_s,
            code=code,
        )

    def _pause(self) -> None:
        """A task that goes ends it, once."""
        if self.task_gone.is_set():
            time.sleep(self.pause_s)
        else:
            self.task_gone.wait(self.pause_s)

    def _report(
        self,
        phase: str,
        instance: AutoscaledInstance | None = None,
        tail: LogTail | None = None,
    ) -> None:
        status = (instance.status() if instance is not None else None) or {}
        lines = self._unsent + (tail.new_lines() if tail is not None else [])
        report = Report(
            slot=self.order.slot,
            attempt=self.order.attempt,
            host=self.host,
            phase=phase,
            log=str(self._folder / "instance.log"),
            state=str(status.get("state", "")),
            ready=bool(status.get("ready", {}).get("ok")),
            lag=status.get("lag"),
            desired=status.get("desired_instances"),
            lines=lines[-MOST_LINES:],
            left_out=max(0, len(lines) - MOST_LINES),
        )
        try:
            self._wanted = self.post(report)
        except (OSError, ValueError) as error:
            log.info("the driver at %s does not answer: %s", self.order.url, error)
            self._unsent = lines[-MOST_LINES:]
            return
        self._unsent = []
        self._answered_s, self._heard = self.clock(), True


def _accepted_drain(address: str) -> bool:
    try:
        asked(f"http://{address}/drain", STATUS_S, post=b"")
        return True
    except OSError:  # it has not begun to listen: it has no tasks to hand over
        return False


def posted_to(order: SlotOrder) -> Post:
    def post(report: Report) -> Wanted:
        headers = {"Content-Type": "application/json", TOKEN_HEADER: order.token}
        data = report.to_json().encode()
        found = json.loads(asked(f"{order.url}/report", POST_S, post=data, headers=headers))
        return Wanted(found.get("wanted") if isinstance(found, dict) else found)

    return post


def main(arguments: Sequence[str] = ()) -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    # What ends the task ends this process in its own time. Ignoring would be inherited by children.
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    order = SlotOrder.from_json(sys.stdin.readline())
    task_gone = threading.Event()

    def wait_for_the_task() -> None:
        sys.stdin.read()
        task_gone.set()

    threading.Thread(
        target=wait_for_the_task,
        name="everflow-task-watch",
        daemon=True,
    ).start()
    try:
        outcome = Supervisor(order, task_gone, posted_to(order)).run()
    except OSError as error:
        outcome = SlotOutcome(
            NOBODY, f"The folder {order.folder} cannot be used on its host: {error}"
        )
    with suppress(OSError):  # nobody reads where the task is gone
        print(outcome.to_json(), flush=True)


if __name__ == "__main__":
    main()
