"""The instances of a chaos run, each behind a network, on a disk and by a clock of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil

from chaos.elastic_group import POLL_S, Group, Process
from chaos.rounds import mutations
from chaos.rounds.program import DEAD, TASKS, topic
from chaos.rounds.surroundings import Clock, Network, SmallDisk
from everflow.instance.client_state import ClientState

SESSION_MS = 8_000
PURGE_MS = 200
"""Scenario 27: what was read of the repartition topic is deleted all the time, whatever happens."""
SETTLE_S = 300.0
LONG_S = 10.0
"""What has not come by then may be held up by the broker."""
STORE = re.compile(r"(\d+_\d+)/(.+)-(\d+)$")
_ASKS_THE_BROKER = """
import socket, struct, sys
host, port = sys.argv[1].split(":")
with socket.create_connection((host, int(port)), timeout=2) as line:
    line.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))  # ApiVersions
    line.settimeout(2)
    sys.exit(0 if line.recv(1) else 1)
"""

Place = tuple[int, str, str]
"""Instance, task, store."""


class Fleet(Group):
    """Owned by one thread. `open` before anything else, `close` at the end."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        folder: Path,
        network: Network,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        merged = {
            "num.standby.replicas": 1,
            "acceptable.recovery.lag": 200,
            "session.timeout.ms": SESSION_MS,
            "rebalance.timeout.ms": 60_000,
            # Longer than anybody waits for a result: what ends an open transaction is a fence.
            "transaction.timeout.ms": 900_000,
            "task.timeout.ms": 300_000,
            "drain.timeout.ms": 60_000,
            "state.cleanup.delay.ms": 86_400_000,  # a store that is gone was wiped, not tidied up
            "repartition.purge.interval.ms": PURGE_MS,
            "errors.dead.letter.queue.topic.name": topic(name, DEAD),
            **(settings or {}),
        }
        super().__init__(name, bootstrap, folder, TASKS, merged, module="chaos.rounds.instance")
        self.network = network
        self.disks: dict[int, SmallDisk] = {}
        self.clocks: dict[int, Clock] = {}
        self.mutation = ""
        self.watch: Callable[[], None] = lambda: None
        """Called again and again while something does not come."""
        self.may_end: set[int] = set()
        """Instances whose end is a fault's, and no failure."""
        self._held = ExitStack()

    def open(self, instances: int, disk_mb: int, clocks: bool) -> None:
        """Make the surroundings of so many instances; 0 MB: disks that cannot be filled."""
        library = Clock.library(self.folder) if clocks else None
        for instance in range(1, instances + 1):
            if disk_mb:
                self.disks[instance] = SmallDisk(self.state(instance).parent, disk_mb)
                self._held.callback(self.disks[instance].close)
            if library is not None:
                self.clocks[instance] = Clock(self.folder / f"clock-{instance}", library)

    def close(self) -> None:
        """Kill whatever lives, and take the disks down."""
        super().close()
        self._held.close()

    def launch(self, instance: int) -> Process:
        """Start one more life of an instance."""
        self.may_end.discard(instance)
        servers = self.network.bootstrap(instance, self.bootstrap)
        return self.start(instance, **{"bootstrap.servers": servers})

    def give_back(self) -> None:
        """Every instance has its network, its disk and its clock, goes on and lives; whatever was
        taken away from it."""
        for clock in self.clocks.values():
            clock.turn(0)
        for disk in self.disks.values():
            disk.empty()
        for instance in sorted({process.instance for process in self.processes}):
            self.network.mend(instance)
            next(one for one in self.processes if one.instance == instance).let_go()
            process = self.here(instance)
            if process is not None and process.process.poll() is not None:
                process.gone_s = time.time()
                process = None
            if process is None:
                process = self.launch(instance)
            for one in process.family():
                with suppress(psutil.NoSuchProcess):
                    one.resume()

    def around(self, instance: int) -> tuple[Sequence[str], Mapping[str, str]]:
        """See `Group`."""
        environment = {mutations.VARIABLE: self.mutation}
        if self.mutation:
            # Python's own hook, for the workers: they are nobody's children but Spark's.
            environment["PYTHONPATH"] = os.pathsep.join(
                filter(None, (str(mutations.HOOK), os.environ.get("PYTHONPATH")))
            )
        if instance in self.clocks:
            environment |= self.clocks[instance].environment
        return self.network.command(instance), environment

    # --- what is so ------------------------------------------------------------------------------

    def wait(
        self,
        what: str,
        reached: Callable[[], bool],
        timeout_s: float,
        *,
        but: Process | None = None,
        poll_s: float = POLL_S,
    ) -> None:
        """See `Group`; those that may end are no failures when they do."""
        since_s = time.monotonic()

        def looked() -> bool:
            if time.monotonic() - since_s > LONG_S:
                self.watch()
            for process in self.living():
                if process.instance in self.may_end and process.process.poll() is not None:
                    process.gone_s = time.time()
            return reached()

        super().wait(what, looked, timeout_s, but=but, poll_s=poll_s)

    def here(self, instance: int) -> Process | None:
        """The present life of an instance, if it has one."""
        return next((one for one in self.living() if one.instance == instance), None)

    def active(self, instance: int) -> frozenset[str]:
        """The tasks it runs, by its own account."""
        process = self.here(instance)
        return process.view().active if process is not None else frozenset()

    def run_somewhere(self, tasks: frozenset[str], but: int = 0) -> bool:
        """Whether living instances, except one of that number, run all of these."""
        views = [one.view() for one in self.living() if one.instance != but]
        return tasks <= frozenset().union(*(view.active for view in views if view.running))

    def moves(self) -> int:
        """How often any life of an instance has begun to take tasks over, so it never becomes less;
        their own clocks may be wrong."""
        return sum(
            event.kind == "state" and event.fields["state"] == ClientState.REBALANCING.name
            for process in self.processes
            for event in process.events.read()
        )

    def reaches(self, instance: int) -> bool:
        """Whether the broker answers somebody who stands where the instance does."""
        servers = self.network.bootstrap(instance, self.bootstrap)
        asked = subprocess.run(
            [*self.network.command(instance), sys.executable, "-c", _ASKS_THE_BROKER, servers],
            capture_output=True,
            check=False,
            timeout=60,
        )
        return asked.returncode == 0

    def dropped(self) -> int:
        """What all lives of all instances have counted as dropped, by their last account."""
        total = 0
        for process in self.processes:
            last = process.events.last("dropped")
            total += 0 if last is None else int(last.fields["records"])
        return total

    # --- disks -----------------------------------------------------------------------------------

    def stores(self) -> dict[Place, Path]:
        """Every copy on every disk."""
        return dict(self._stores())

    def _stores(self) -> Iterator[tuple[Place, Path]]:
        for instance in sorted({process.instance for process in self.processes}):
            for data in sorted(self.state(instance).glob("*_*/*/data.mdb")):
                found = STORE.search(str(data.parent))
                if found is not None:
                    yield (instance, found[1], found[2]), data.parent

    def files(self) -> dict[Place, tuple[str, int]]:
        """Folder and inode of every copy: a wiped one has another."""
        return {
            place: (folder.name, os.stat(folder / "data.mdb").st_ino)
            for place, folder in self._stores()
        }
