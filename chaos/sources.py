"""A folder of files and a table of PostgreSQL are read into topics by two instances, of which one
is killed on the way, with all of its processes; then the rows are counted.

Usage: ``./run chaos sources [--files N] [--rows N] [--json FILE]``. A file has ten rows. The kill
comes when a third of all rows is there. Ends with 1 if a row is lost or there twice.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, TopicPartition

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from chaos.report import tell  # noqa: E402
from chaos.sources_instance import FILE_ROWS, FILES_TOPIC, TABLE_TOPIC  # noqa: E402
from everflow.testing.broker import EmbeddedBroker  # noqa: E402
from everflow.testing.waiting import wait_until  # noqa: E402
from integration.debezium.postgres import USER, server  # noqa: E402

APPLICATION = "sources"
PARTITIONS = 4
START_S, READ_S = 900.0, 3_600.0
POLL_S = 1.0
QUIET_POLLS = 5
"""So often nothing more comes, before rows are counted: one that is there twice would come late."""


@dataclass
class Counted:
    """How often each id is in a topic. ``wanted``: ids from 0 on."""

    topic: str
    wanted: int
    times: np.ndarray[Any, Any] = field(init=False)
    strangers: int = 0

    def __post_init__(self) -> None:
        self.times = np.zeros(self.wanted, np.int64)

    def add(self, keys: Sequence[bytes]) -> None:
        """Keys are bigints, as `serdes.long` writes them."""
        ids = np.frombuffer(b"".join(keys), ">i8").astype(np.int64)
        known = ids[(ids >= 0) & (ids < self.wanted)]
        self.strangers += len(ids) - len(known)
        np.add.at(self.times, known, 1)

    @property
    def rows(self) -> int:
        return int(self.times.sum())

    @property
    def lost(self) -> int:
        return int((self.times == 0).sum())

    @property
    def doubled(self) -> int:
        return int((self.times - 1).clip(0).sum()) + self.strangers


class Reader:
    """Counts what is committed in the topics."""

    def __init__(self, bootstrap: str, counted: Mapping[str, Counted]) -> None:
        self._counted = counted
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "the-books",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        places = [TopicPartition(topic, p, 0) for topic in counted for p in range(PARTITIONS)]
        self._consumer.assign(places)

    def read(self) -> int:
        """What has come; waits a moment. Returns the number of all rows so far."""
        until = time.monotonic() + POLL_S
        while time.monotonic() < until:
            found = self._consumer.consume(20_000, 0.2)
            if not found:
                break
            keys: dict[str, list[bytes]] = {topic: [] for topic in self._counted}
            for one in found:
                assert one.error() is None, one.error()
                keys[str(one.topic())].append(one.key() or b"")
            for topic, listed in keys.items():
                self._counted[topic].add(listed)
        return sum(one.rows for one in self._counted.values())

    def close(self) -> None:
        """Leave the broker."""
        self._consumer.close()


@dataclass
class Process:
    """An instance with a state folder of its own."""

    folder: Path
    given: Mapping[str, Any]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns at once; `running` tells when it works."""
        self.folder.mkdir(parents=True)
        settings = {**self.given["settings"], "state.dir": str(self.folder / "state")}
        given = json.dumps({**self.given, "settings": settings})
        command = [sys.executable, "-m", "chaos.sources_instance", given]
        with (self.folder / "log").open("ab") as log, (self.folder / "states").open("ab") as states:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=states, stderr=log)

    @property
    def running(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "\n".join(self.history())
        return "RUNNING" in (self.folder / "states").read_text().split()

    def history(self) -> list[str]:
        """The end of its log."""
        return (self.folder / "log").read_text(errors="replace").splitlines()[-60:]

    def kill(self) -> None:
        """It and all its processes at once, by signal 9; idempotent."""
        if self.process is None:
            return
        with suppress(psutil.NoSuchProcess):
            own = psutil.Process(self.process.pid)
            for one in [own, *own.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
        self.process.wait(30)


@dataclass
class Report:
    """``lost`` and ``doubled``: rows, by topic. ``seconds``: since the first instance ran, with the
    time in which the group finds out that the other one is gone."""

    files: int
    rows: int
    killed_at: int = 0
    seconds: float = 0.0
    rows_per_s: float = 0.0
    lost: dict[str, int] = field(default_factory=dict)
    doubled: dict[str, int] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        return not any((*self.lost.values(), *self.doubled.values())) and bool(self.killed_at)


def write_files(folder: Path, count: int) -> None:
    """``count`` Parquet files of `FILE_ROWS` rows."""
    folder.mkdir()
    for at in range(count):
        ids = range(at * FILE_ROWS, (at + 1) * FILE_ROWS)
        words = [f"row {one} of file {at}" for one in ids]
        pq.write_table(pa.table({"id": ids, "words": words}), folder / f"{at:06}.parquet")


@contextmanager
def table(rows: int) -> Iterator[str]:
    """The dsn of a server with a table of so many rows; empty without rows."""
    if not rows:
        yield ""
        return
    with server() as postgres:
        postgres.run(
            f"CREATE TABLE items AS SELECT n AS id, 'row ' || n || ' of the table' AS words FROM "
            f"generate_series(0, {rows - 1}) n; ALTER TABLE items ADD PRIMARY KEY (id); "
            f"VACUUM ANALYZE items"
        )
        yield f"host=127.0.0.1 port={postgres.port} user={USER} dbname=postgres"


def run(files: int, rows: int) -> Report:
    """Both sources, two instances, one kill."""
    report = Report(files, rows)
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ef-sources-")))
        folder = None
        if files:
            folder = root / "files"
            write_files(folder, files)
        dsn = stack.enter_context(table(rows))
        broker = stack.enter_context(EmbeddedBroker(root / "broker"))
        counted = {}
        for topic, wanted in ((FILES_TOPIC, files * FILE_ROWS), (TABLE_TOPIC, rows)):
            if wanted:
                broker.create_topic(topic, PARTITIONS)
                counted[topic] = Counted(topic, wanted)
        given = {
            "folder": None if folder is None else str(folder),
            "dsn": dsn,
            "rows": rows,
            "settings": {
                "application.id": APPLICATION,
                "bootstrap.servers": broker.bootstrap_servers,
                "processing.guarantee": "exactly_once_v2",
                "num.stream.threads": 1,
                "session.timeout.ms": 10_000,
            },
        }
        first, second = (Process(root / name, given) for name in ("first", "second"))
        for one in (first, second):
            stack.callback(one.kill)
        reader = Reader(broker.bootstrap_servers, counted)
        stack.callback(reader.close)
        _read(first, second, reader, counted, report)
    return report


def _read(
    first: Process, second: Process, reader: Reader, counted: Mapping[str, Counted], report: Report
) -> None:
    wanted = sum(one.wanted for one in counted.values())

    def history() -> list[str]:
        return [f"{reader.read()} of {wanted} rows", *first.history(), *second.history()]

    second.start()
    first.start()
    wait_until(lambda: first.running or second.running, START_S, "an instance to run", history)
    began = time.monotonic()
    print("an instance runs", flush=True)
    wait_until(
        lambda: reader.read() >= wanted // 3 and first.running and second.running,
        READ_S,
        "a third of all rows, and both instances",
        history,
    )
    report.killed_at = reader.read()
    first.kill()
    print(f"killed one of two at {report.killed_at} rows", flush=True)
    assert report.killed_at < wanted, "all rows were there before the kill: take more"
    wait_until(lambda: reader.read() >= wanted, READ_S, "all rows", history)
    report.seconds = round(time.monotonic() - began, 1)
    report.rows_per_s = round(wanted / report.seconds)
    for _ in range(QUIET_POLLS):
        reader.read()
    report.lost = {topic: one.lost for topic, one in counted.items()}
    report.doubled = {topic: one.doubled for topic, one in counted.items()}


def main(arguments: Sequence[str]) -> int:
    """0 if every row is there once."""
    parser = argparse.ArgumentParser(
        prog="./run chaos sources", description="two instances read, one is killed; then count"
    )
    parser.add_argument("--files", type=int, default=10_000, help="of ten rows each; 0: none")
    parser.add_argument("--rows", type=int, default=5_000_000, help="of the table; 0: none")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    options = parser.parse_args(arguments)
    report = run(options.files, options.rows)
    tell(asdict(report), options.json)
    return 0 if report.clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
