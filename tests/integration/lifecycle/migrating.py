"""For tests of `everflow migrate`: both versions of a program, and the migrator as a process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from everflow import Topology
from everflow.columns.key_partitions import java_partitions
from everflow.errors import ApplicationMigratedError, RetriableError
from everflow.instance.client_state import ClientState
from everflow.kafka.admin import ClusterAdmin
from everflow.protocol.messages import FILLED, mark_in
from everflow.testing import wait_until
from everflow.worker.crash_points import ENVIRONMENT_VARIABLE
from integration.lifecycle.lifecycle_cluster import (
    Application,
    Cluster,
    Record,
    long,
    text,
    until_failed,
    until_running,
)

COMMAND = "from everflow.cli import main; main()"
HEAD = """
from everflow import (
    JoinWindows, Materialized, SessionWindows, StreamsBuilder, TimeWindows, agg, serdes
)
builder = StreamsBuilder()
words = builder.stream({source!r}, key=serdes.string(), value=serdes.string())
"""
TAIL = "\ntopology = builder.build()\n"
KEPT = "windowstore.changelog.additional.retention.ms=3153600000000"
SWITCH_S = 240.0
POINT_S = 180.0


class NextVersion(Application):
    @property
    def id(self) -> str:
        return f"{self.cluster.prefix}-next"


def process_id_in(folder: Path) -> str:
    """Of the instance with this state folder."""
    try:
        found = json.loads((folder / "process-metadata").read_text())
    except (OSError, ValueError):
        return "not yet"
    return str(found["process_id"])


@dataclass
class Migration:
    """Two versions that read ``source``, and the command between them. ``old``, ``new``: lines of
    the programs behind `HEAD`, with ``{out}``. ``settings``: of both, as `Application` has them;
    ``guarantee``: of versions that are processes."""

    cluster: Cluster
    folder: Path
    old: str
    new: str
    partitions: int = 4
    settings: Mapping[str, object] = field(default_factory=dict)
    guarantee: str = "exactly_once_v2"
    source: str = field(init=False)
    out: str = field(init=False)
    process: subprocess.Popen[bytes] | None = None
    sent: int = 0
    versions: list[psutil.Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.source = self.cluster.topic("in", self.partitions)
        self.out = self.cluster.topic("out", self.partitions)
        self.before = Application(self.cluster, self.folder, self.settings)
        self.after = NextVersion(self.cluster, self.folder, self.settings)
        self.admin = ClusterAdmin({"bootstrap.servers": self.cluster.bootstrap})
        self.points.mkdir()
        for name, lines in (("old", self.old), ("new", self.new)):
            (self.folder / f"{name}.py").write_text(self._text(lines))

    @property
    def points(self) -> Path:
        return self.folder / "points"

    def _text(self, lines: str) -> str:
        return HEAD.format(source=self.source) + lines.replace("{out}", self.out) + TAIL

    def topology(self, lines: str) -> Topology:
        names: dict[str, Any] = {}
        exec(self._text(lines), names)
        topology: Topology = names["topology"]
        return topology

    # --- records ---------------------------------------------------------------------------------

    def write(self, records: Iterable[Record]) -> None:
        self.cluster.write(self.source, records)

    def words(self, count: int, keys: int = 10) -> None:
        """So many more records over ``w0``, ``w1``, ..., each with a number of its own."""
        numbers = range(self.sent, self.sent + count)
        self.write(text(f"w{n % keys}", f"{n}", 1_000 + n, n % self.partitions) for n in numbers)
        self.sent += count

    def by_key(self, count: int, keys: int = 10) -> None:
        """As `words`, each where Java's partitioner puts its key."""
        numbers = range(self.sent, self.sent + count)
        words = [f"w{n % keys}" for n in numbers]
        places = java_partitions(pa.array([one.encode() for one in words]), self.partitions)
        rows = zip(words, numbers, places.tolist(), strict=True)
        self.write(text(word, f"{n}", 1_000 + n, place) for word, n, place in rows)
        self.sent += count

    def truth(self, keys: int = 10) -> dict[bytes | None, int]:
        return {
            f"w{k}".encode(): len(range(k, self.sent, keys)) for k in range(min(keys, self.sent))
        }

    def require_counted_once(self) -> None:
        """Of programs that count words: each count is the one before and one or more, and the last
        is the truth. At least once a count may be there again."""
        updates, again = self.updates(), self.guarantee == "at_least_once"
        assert {key: counts[-1] for key, counts in updates.items()} == self.truth()
        for key, counts in updates.items():
            assert all(one < two + again for one, two in pairwise(counts)), (key, counts)

    def updates(self) -> dict[bytes | None, list[int]]:
        """The results of each key, in their order."""
        found: dict[bytes | None, list[int]] = {}
        for record in sorted(self.cluster.read(self.out), key=lambda one: one.offset):
            found.setdefault(record.key, []).append(long(record.value) or 0)
        return found

    # --- the command -----------------------------------------------------------------------------

    def command(self, *options: str) -> list[str]:
        return [
            *(sys.executable, "-c", COMMAND, "migrate", self.before.id, "new.py:topology"),
            *("--from", "old.py:topology", "--application-id", self.after.id),
            *("--bootstrap-servers", self.cluster.bootstrap, "--set", KEPT, "--yes", *options),
        ]

    def launch(self, *options: str) -> subprocess.Popen[bytes]:
        # A program of a test may import what tests do.
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, ENVIRONMENT_VARIABLE: str(self.points), "PYTHONPATH": path}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command(*options),
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self.process

    @property
    def log(self) -> Path:
        return self.folder / "migrate.log"

    def said(self) -> str:
        return self.log.read_text()

    def history(self) -> list[str]:
        return self.said().splitlines()[-30:]

    def until_ended(self) -> int:
        assert self.process is not None
        process = self.process
        wait_until(
            lambda: process.poll() is not None, SWITCH_S, "the migrator to end", self.history
        )
        return int(process.returncode)

    def told(self, *options: str) -> tuple[int, str]:
        """Exit code and output of a command that ends by itself."""
        self.launch(*options)
        return self.until_ended(), self.said()

    def until_marked(self) -> None:
        """The new version may be started."""

        def marked() -> bool:
            assert self.process is None or self.process.poll() is None, self.said()
            found = self.cluster.committed(self.after.id, self.source, "read_uncommitted")
            marks = [mark_in(text) for _, text in found.values()]
            return any(mark is not None and mark.kind == FILLED for mark in marks)

        wait_until(marked, POINT_S, "the mark of the migration", self.history)

    def until_switched(self) -> None:
        assert self.until_ended() == 0, self.said()

    def close(self) -> None:
        for started in self.versions:
            with suppress(psutil.NoSuchProcess):
                self.kill_version(started)
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.admin.close()

    # --- crash points ----------------------------------------------------------------------------

    def arm(self, *points: str) -> None:
        for left in self.points.iterdir():
            left.unlink()
        for point in points:
            (self.points / point).touch()

    def until_reached(self, point: str) -> int:
        marker = self.points / f"{point}.reached"
        process = self.process

        def there() -> bool:
            ended = process is not None and process.poll() is not None
            assert marker.exists() or not ended, self.said()
            return marker.exists()

        wait_until(there, POINT_S, f"the migrator to reach {point}", self.history)
        return int(marker.read_text())

    def go(self, point: str) -> None:
        (self.points / f"{point}.go").touch()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    # --- versions as processes -------------------------------------------------------------------

    def start_version(
        self, which: str, state: Path | None = None, release: Path | None = None
    ) -> psutil.Popen:
        """``old`` or ``new``, with `everflow run`; returns once it is a member. ``release``: the
        folder of another everflow than this one."""
        app = self.before if which == "old" else self.after
        state = state or app.state
        started = self.launched(which, state, release)

        def joined() -> bool:
            assert started.poll() is None, (self.folder / f"{which}.log").read_text()
            process_id = process_id_in(state / app.id)
            try:
                return any(process_id in one for one in self.admin.client_ids(app.id))
            except RetriableError:  # the group has no coordinator for a moment
                return False

        wait_until(joined, POINT_S, f"the {which} version to join")
        return started

    def launched(self, which: str, state: Path, release: Path | None = None) -> psutil.Popen:
        """As `start_version`, without waiting."""
        app = self.before if which == "old" else self.after
        paths = [str(release)] if release else []
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        command = [
            *(sys.executable, "-c", COMMAND, "run", f"{which}.py:topology"),
            *("--application-id", app.id, "--bootstrap-servers", self.cluster.bootstrap),
            *("--state-dir", str(state), "--guarantee", self.guarantee, "--threads", "1"),
            *("--set", "session.timeout.ms=6000", "--set", KEPT),
        ]
        log = (self.folder / f"{which}.log").open("ab")
        started = psutil.Popen(command, cwd=self.folder, stdout=log, stderr=log, env=environment)
        self.versions.append(started)
        return started

    def kill_version(self, started: psutil.Process) -> None:
        """With its JVM and workers."""
        family = [*started.children(recursive=True), started]
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(family, POINT_S)

    # --- the whole way ---------------------------------------------------------------------------

    @contextmanager
    def old_running(self, *between: str) -> Iterator[Any]:
        """The old version, which the switch ends; ``between``: repartition topics."""
        topics = [f"{self.before.id}-{name}-repartition" for name in between]
        streams = self.before.instance(self.topology(self.old))
        try:
            streams.start()
            until_running(streams)
            self.before.until_processed(streams, self.source, *topics)
            yield streams
        finally:
            with suppress(ApplicationMigratedError):
                streams.close(60.0)

    def carry(self, *options: str, between: Iterable[str] = ("again",)) -> Iterator[str]:
        """Migrates; stops with ``before`` once the old version has processed what there is, with
        ``copied`` while both are there, and with ``switched`` once the new version has."""
        with self.old_running(*between) as old:
            yield "before"
            self.launch(*options)
            self.until_marked()
            new = self.after.instance(self.topology(self.new))
            try:
                new.start()
                until_running(new)
                assert not any(task.role.value == "active" for task in new.all_tasks().values())
                yield "copied"
                self.until_switched()
                failed = until_failed(old)
                assert isinstance(failed, ApplicationMigratedError), failed
                assert failed.to == self.after.id
                topics = [f"{self.after.id}-{name}-repartition" for name in between]
                wait_until(lambda: self.runs(new), POINT_S, "tasks of the new version")
                self.after.until_processed(new, self.source, *topics)
                yield "switched"
                self.after.until_processed(new, self.source, *topics)
            finally:
                assert new.close(60.0)

    def runs(self, streams: Any) -> bool:
        if streams.error is not None:
            raise streams.error
        active = [one for one in streams.all_tasks().values() if one.role.value == "active"]
        return bool(active) and streams.state is ClientState.RUNNING

    def through(self, *options: str, between: Iterable[str] = ("again",)) -> None:
        """The whole way, with words before, between and behind the switch."""
        self.words(60)
        for _ in self.carry(*options, between=between):
            self.words(40)
