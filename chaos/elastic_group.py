"""The instances of one application as processes of their own, and an observer of their
changelogs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.events import EventFile, View, balanced
from chaos.assignment_log import EndSums, Life
from chaos.elastic_instance import BOUNCE, LEAVE, ROOT
from everflow.errors import EverflowError
from everflow.kafka.admin import ClusterAdmin
from everflow.records import TopicPartition
from everflow.worker.crash_points import ENVIRONMENT_VARIABLE, NAMES

POLL_S = 0.2
BALANCED_FOR_S = 2.0
BALANCE_S = 300.0
END_S = 180.0
SAMPLE_S = 0.5


class GroupFailedError(RuntimeError):
    """An instance ended that should not, or something did not come in time; carries what the
    instances said."""


class GroupTimeoutError(GroupFailedError):
    """It did not come in time, and nobody has ended."""


class Process:
    """One life of an instance. ``settings`` are those it was started with."""

    def __init__(
        self,
        instance: int,
        number: int,
        folder: Path,
        command: Sequence[str],
        settings: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.instance, self.number, self.settings = instance, number, settings
        self._points = folder / f"points-{instance}"
        self._points.mkdir(exist_ok=True)
        self.events = EventFile(folder / f"instance-{instance}.life-{number}.events")
        self.log = folder / f"instance-{instance}.life-{number}.log"
        self.started_s = time.time()
        self.gone_s: float | None = None
        self._view, self._seen = View(), 0
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, ENVIRONMENT_VARIABLE: str(self._points), **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def name(self) -> str:
        """For people."""
        return f"instance {self.instance}, life {self.number}"

    def view(self) -> View:
        """What it does now, by its own account."""
        events = self.events.read()
        for event in events[self._seen :]:
            self._view = self._view.after(event)
        self._seen = len(events)
        return self._view

    def tell(self, word: str) -> None:
        """Say a word of `chaos.elastic_instance`."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n".encode())
        self.process.stdin.flush()

    def family(self) -> list[psutil.Process]:
        """The process and all it started."""
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        return []

    def arm(self, point: str) -> None:
        """The next of its processes that comes to a point of `everflow.worker.crash_points`
        stops there."""
        for left in ("reached", "go"):  # of one that was killed there
            (self._points / f"{point}.{left}").unlink(missing_ok=True)
        (self._points / point).touch()

    def reached(self, point: str) -> bool:
        """Whether a process stands there."""
        return (self._points / f"{point}.reached").exists()

    def caught(self, point: str) -> int:
        """The process that stands there, by its pid."""
        return int((self._points / f"{point}.reached").read_text())

    def passed(self, point: str) -> bool:
        """Whether the process that was let go has gone on."""
        return not (self._points / f"{point}.go").exists()

    def go(self, point: str) -> None:
        """Let it go on."""
        (self._points / f"{point}.go").touch()

    def let_go(self) -> None:
        """Nobody is stopped at any point, and who stands at one goes on."""
        for point in NAMES:
            (self._points / point).unlink(missing_ok=True)
            if self.reached(point):
                self.go(point)

    def life(self) -> Life:
        """For the checker."""
        return Life(
            str(self.instance), self.number, self.started_s, self.gone_s, self.events.read()
        )

    def history(self) -> list[str]:
        """The last lines it wrote."""
        lines = self.log.read_text(errors="replace").splitlines()[-25:]
        return [f"--- {self.name} ({'gone' if self.gone_s else 'lives'})", *lines]


@dataclass
class Group:
    """The instances of ``name``; owned by one thread. `close` ends all of them. ``folder`` holds
    logs and one state folder each."""

    name: str
    bootstrap: str
    folder: Path
    partitions: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    module: str = "chaos.elastic_instance"

    # --- instances -------------------------------------------------------------------------------

    def living(self) -> list[Process]:
        """The instances that run, in the order of their numbers."""
        return sorted((p for p in self.processes if p.gone_s is None), key=lambda p: p.instance)

    def of(self, instance: int) -> Process:
        """The present life of an instance."""
        return next(p for p in self.living() if p.instance == instance)

    def start(self, instance: int, **settings: Any) -> Process:
        """Start one more life of an instance on its own state folder; returns at once."""
        number = sum(1 for p in self.processes if p.instance == instance) + 1
        merged = {
            "application.id": self.name,
            "bootstrap.servers": self.bootstrap,
            "state.dir": str(self.state(instance).parent),
            "processing.guarantee": "exactly_once_v2",
            "num.stream.threads": 1,
            **self.settings,
            **settings,
        }
        events = self.folder / f"instance-{instance}.life-{number}.events"
        prefix, environment = self.around(instance)
        command = [*prefix, sys.executable, "-m", self.module, str(events), json.dumps(merged)]
        self.processes.append(
            Process(instance, number, self.folder, command, settings, environment)
        )
        return self.processes[-1]

    def around(self, _instance: int) -> tuple[Sequence[str], Mapping[str, str]]:
        """What an instance's command line begins with, and its environment beside ours."""
        return (), {}

    def leave(self, instance: int) -> None:
        """A clean stop on purpose: the instance hands its tasks over, then leaves."""
        self._end(self.of(instance), LEAVE)

    def stop(self, instance: int) -> None:
        """A clean stop that the group must not notice, if the member is static."""
        self._end(self.of(instance), BOUNCE)

    def kill(self, instance: int, whole: bool) -> None:
        """SIGKILL: the whole tree of processes at once, as if the host had gone, or the driver
        alone."""
        process = self.of(instance)
        family = process.family()
        process.gone_s = time.time()
        for member in family if whole else family[:1]:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        process.process.wait(30)
        # The state folder's lock went with the driver, but its successor must not meet what is left
        # of the tree by chance only.
        psutil.wait_procs(family[1:], timeout=30)

    def _end(self, process: Process, word: str) -> None:
        process.tell(word)
        self.wait(
            f"the end of {process.name}",
            lambda: process.process.poll() is not None,
            END_S,
            but=process,
        )
        process.gone_s = time.time()
        if process.process.returncode != 0:
            raise self.failure(f"{process.name} ended with {process.process.returncode}")

    def close(self) -> None:
        """Kill whatever lives."""
        for process in self.processes:
            for member in process.family():
                with suppress(psutil.NoSuchProcess):
                    member.kill()
            process.process.wait(30)
            if process.process.stdin is not None:
                with suppress(OSError):
                    process.process.stdin.close()

    # --- what they are doing ---------------------------------------------------------------------

    def wait_balanced(self, standbys: int, timeout_s: float = BALANCE_S) -> None:
        """Until every task runs once, evenly spread, with its standbys, and has done so for two
        seconds."""
        since: list[float] = []

        def reached() -> bool:
            views = [process.view() for process in self.living()]
            if not balanced(views, self.partitions, min(standbys, len(views) - 1)):
                since.clear()
                return False
            since.append(time.monotonic())
            return since[-1] - since[0] >= BALANCED_FOR_S

        self.wait("a balanced group", reached, timeout_s)

    def wait_spread(self, timeout_s: float = BALANCE_S) -> None:
        """Until every instance runs and every task is active once, wherever."""

        def reached() -> bool:
            views = [process.view() for process in self.living()]
            active = [task for view in views for task in view.active]
            return (
                all(view.running for view in views)
                and len(active) == len(set(active)) == self.partitions
            )

        self.wait("every task to run", reached, timeout_s)

    def generation(self) -> int:
        """The latest that a living instance has completed."""
        completed = [
            event.fields["generation"]
            for p in self.living()
            for event in p.events.read()
            if event.kind == "roles"
        ]
        return max(completed, default=-1)

    def wait(
        self,
        what: str,
        reached: Callable[[], bool],
        timeout_s: float,
        *,
        but: Process | None = None,
        poll_s: float = POLL_S,
    ) -> None:
        """Poll; GroupFailedError when the time is over or an instance has ended, except ``but``."""
        deadline = time.monotonic() + timeout_s
        pause = threading.Event()
        while not reached():
            for process in self.living():
                if process is not but and process.process.poll() is not None:
                    raise self.failure(
                        f"{process.name} ended with {process.process.returncode} while waiting for "
                        f"{what}"
                    )
            if time.monotonic() > deadline:
                raise GroupTimeoutError(str(self.failure(f"waited {timeout_s:.0f} s for {what}")))
            pause.wait(poll_s)

    def failure(self, what: str) -> GroupFailedError:
        """An error with the views and the ends of the logs: of all that live, and of the last."""
        living = self.living()
        views = [f"{process.name}: {process.view()}" for process in living]
        told = [one for one in self.processes[-4:] if one not in living] + living
        return GroupFailedError(
            "\n".join([what, *views, *(line for one in told for line in one.history())])
        )

    def lives(self) -> list[Life]:
        """All of them, for the checker."""
        return [process.life() for process in self.processes]

    # --- disks -----------------------------------------------------------------------------------

    def state(self, instance: int) -> Path:
        """The state folder of the application on an instance's disk."""
        return self.folder / f"disk-{instance}" / self.name

    def store_files(self, store: str) -> dict[tuple[int, int], tuple[Path, int]]:
        """(instance, partition) -> (folder, inode of the data file) of every copy on a disk: a
        wiped one has another."""
        found: dict[tuple[int, int], tuple[Path, int]] = {}
        for instance in {process.instance for process in self.processes}:
            for data in sorted(self.state(instance).glob(f"0_*/{store}-*/data.mdb")):
                partition = int(data.parent.parent.name.split("_")[1])
                found[instance, partition] = (data.parent, os.stat(data).st_ino)
        return found


class Observer(threading.Thread):
    """Reads the stable ends of the changelogs twice a second, from outside of the instances."""

    def __init__(self, bootstrap: str, changelog: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self._servers = bootstrap
        self._asked = {
            TopicPartition(changelog, partition): f"0_{partition}"
            for partition in range(partitions)
        }
        self._samples: list[tuple[float, Mapping[str, int]]] = []
        self._stop_asked = threading.Event()

    def run(self) -> None:
        admin = ClusterAdmin({"bootstrap.servers": self._servers})
        while not self._stop_asked.wait(SAMPLE_S):
            at_s = time.time()
            with suppress(EverflowError):  # before the first start there is no changelog
                ends = admin.end_offsets(list(self._asked), "read_committed")
                self._samples.append((at_s, {self._asked[tp]: end for tp, end in ends.items()}))
        admin.close()

    def ends(self) -> EndSums:
        """What was read."""
        return EndSums(list(self._samples))

    def stop(self) -> None:
        """End the thread."""
        self._stop_asked.set()
        self.join()
