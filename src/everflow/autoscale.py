"""Runs as many instances on this machine as they say that there should be (note 049). `change`
decides, and is pure; `Autoscaler` reads, decides and acts until it is stopped, and so does
`everflow.fleet` over executor slots. May import layer 0 and `everflow.client.direct`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from everflow.client.direct import asked
from everflow.errors import FatalError

LEAST_REST_S = 5.0
MOST_REST_S = 300.0


@dataclass(frozen=True)
class InstanceSeen:
    """``settled``: RUNNING, with all that is its own; ``desired``: how many it asks for, if any."""

    settled: bool
    desired: int | None
    ending: bool = False


def change(seen: Sequence[InstanceSeen], least: int, most: int) -> int:
    """Number of instances to start, or (negative) to end, now. One step at a time: while one
    starts, restores or ends, the others speak of a group that is about to change."""
    present = [one for one in seen if not one.ending]
    if len(present) < least:
        return least - len(present)
    if len(present) > most:
        return -1
    if len(present) < len(seen) or not all(one.settled for one in present):
        return 0
    wanted = [one.desired for one in present if one.desired is not None]
    if not wanted:
        return 0
    target = min(most, max(least, *wanted))
    return target - len(present) if target >= len(present) else -1


COMMAND = "from everflow.cli import main; main()"
STATUS_S = 5.0
TAIL_LINES = 15


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@dataclass(kw_only=True)
class AutoscaledInstance:
    """An instance that `start_instance` started. Used by one thread."""

    number: int
    address: str
    log: Path
    process: subprocess.Popen[bytes]
    ending: bool = False
    log_begin: int = 0
    """Where its own lines begin in the log: those of earlier ones of the number stand before."""

    @property
    def where(self) -> str:
        return (
            f"process {self.process.pid}, watched at http://{self.address}/status, its log: "
            f"{self.log}"
        )

    @property
    def code(self) -> int | None:
        return self.process.poll()

    def status(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(asked(f"http://{self.address}/status", STATUS_S))
            return found
        except (OSError, ValueError):
            return None

    def seen(self) -> InstanceSeen:
        status = self.status() or {}
        settled = status.get("state") == "RUNNING" and bool(status.get("ready", {}).get("ok"))
        return InstanceSeen(settled, status.get("desired_instances"), self.ending)

    def end(self, for_good: bool = True) -> None:
        """``for_good`` makes no difference: one that is no static member hands over and leaves."""
        self.ending = True
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGTERM)

    def wait(self, timeout_s: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        return self.code is not None

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def tail(self) -> str:
        with suppress(OSError):
            said = self.log.read_bytes()[self.log_begin :].decode(errors="replace")
            return "\n".join(said.splitlines()[-TAIL_LINES:])
        return ""


def start_instance(
    number: int, target: str, options: Sequence[str], folder: Path, **more: Any
) -> AutoscaledInstance:
    """Start `everflow run`. ``folder``: for state and log, kept; ``more``: to `Popen`."""
    folder.mkdir(parents=True, exist_ok=True)
    address, log = f"127.0.0.1:{free_port()}", folder / "instance.log"
    command = [
        *(sys.executable, "-c", COMMAND, "run", target, *options),
        *("--state-dir", str(folder / "state"), "--set", f"http.listen={address}"),
    ]
    with log.open("ab") as said:
        begin = said.tell()
        # Ctrl-C is for the autoscaler, which ends its instances in their turn
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
            **more,
        )
    return AutoscaledInstance(
        number=number, address=address, log=log, process=process, log_begin=begin
    )


STEP_S = 2.0
END_S = 120.0
MOST_FAILURES = 3
"""Instances that ended by themselves, one after the other, before the autoscaler gives up."""
GOOD_AFTER_S = 60.0
"""One that ran so long was no failure of the start."""


class Instance(Protocol):
    """An instance as the loop sees it: a process of this machine, or a slot of a cluster.
    ``number``: used again, with the state. ``where``: its place, and ``tail``, its last lines, for
    people. ``ending``: it was ordered to end; ``code``: its exit code, None while it runs."""

    @property
    def number(self) -> int: ...
    @property
    def where(self) -> str: ...
    @property
    def ending(self) -> bool: ...
    @property
    def code(self) -> int | None: ...
    def seen(self) -> InstanceSeen: ...
    def end(self, for_good: bool) -> None:
        """End in order; do not wait. Not ``for_good``: a static member's tasks wait for it."""

    def wait(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s``; True if it has ended."""

    def kill(self) -> None: ...
    def tail(self) -> str: ...


@dataclass(kw_only=True)
class Autoscaler:
    """Owned by `run`'s thread; others call `resize` only. ``say`` gets a line for each event."""

    target: str
    options: Sequence[str]
    folder: Path
    least: int
    most: int
    say: Callable[[str], None]
    every_s: float = STEP_S
    start: Callable[[int, str, Sequence[str], Path], Instance] = start_instance
    after_step: Callable[[Sequence[Instance]], None] = lambda _: None
    instances: list[Instance] = field(default_factory=list)
    clock: Callable[[], float] = time.monotonic
    _failures: int = 0
    _rests_until_s: float = 0.0
    _started_s: dict[int, float] = field(default_factory=dict)

    def run(self, stop: threading.Event) -> None:
        """Run until ``stop`` is set; then all instances end in order. FatalError if instances end
        by themselves again and again."""
        try:
            while True:
                self.step()
                if stop.wait(self.every_s):
                    return
        finally:
            self._end_all()

    def resize(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    def step(self) -> None:
        self._collect()
        wanted = change([one.seen() for one in self.instances], self.least, self.most)
        if self.clock() >= self._rests_until_s:
            for _ in range(max(0, wanted)):
                self._start_one()
        if wanted < 0:
            present = [one for one in self.instances if not one.ending]
            last = max(present, key=lambda one: one.number)
            self.say(f"instance {last.number} ends: {len(present) - 1} are enough")
            last.end(for_good=True)
        self.after_step(self.instances)

    def _start_one(self) -> None:
        number = next(n for n in range(1, 1_000) if n not in {one.number for one in self.instances})
        made = self.start(
            number,
            self.target,
            self.options,
            self.folder / f"instance-{number}",
        )
        self.instances.append(made)
        self._started_s[number] = self.clock()
        self.say(f"instance {number} starts ({made.where})")

    def _collect(self) -> None:
        for one in [one for one in self.instances if one.code is not None]:
            self.instances.remove(one)
            if one.ending:
                self.say(f"instance {one.number} has ended")
                continue
            ran_s = self.clock() - self._started_s.get(one.number, 0.0)
            self._failures = 1 if ran_s > GOOD_AFTER_S else self._failures + 1
            self.say(f"instance {one.number} ended by itself (exit code {one.code})")
            if self._failures >= MOST_FAILURES:
                self._give_up_or_rest(one)

    def _give_up_or_rest(self, failed: Instance) -> None:
        """Give up only if no other one works: an ill host is no reason to end the others."""
        if not any(one.seen().settled for one in self.instances if one is not failed):
            raise FatalError(
                f"{self._failures} instances ended by themselves, one after the other. The last "
                f"one said ({failed.where}):\n{failed.tail()}"
            )
        beyond = min(self._failures - MOST_FAILURES, 10)
        rest = min(MOST_REST_S, LEAST_REST_S * 2**beyond)
        self._rests_until_s = self.clock() + rest
        self.say(
            f"{self._failures} instances ended by themselves, one after the other; the next one "
            f"starts in {rest:g} s. The last one said ({failed.where}):\n{failed.tail()}"
        )

    def _end_all(self) -> None:
        running = [one for one in self.instances if one.code is None]
        if running:
            self.say(f"stopping: {len(running)} instances end in order")
        for one in running:
            one.end(for_good=False)
        deadline = self.clock() + END_S
        for one in running:
            if not one.wait(max(0.1, deadline - self.clock())):
                self.say(f"instance {one.number} does not end: it is killed")
                one.kill()
                one.wait(10.0)
