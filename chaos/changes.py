"""Change data while the connector and the instance are killed; then everything is compared.

Usage: ``./run chaos changes [--transactions N] [--kills N] [--seed S] [--json FILE]``. PostgreSQL
gets transactions drawn from the seed (rows that are inserted, updated, deleted, several at once, or
under another key; long texts that it does not log again; rollbacks; a column that is added and
dropped). Debezium's connector in Kafka Connect writes them to a topic, a program of everflow keeps
the table, writes it to two topics, and to a second PostgreSQL, as rows and as their versions. The
connector and the instance are killed with -9 so many times each, at drawn places, while they write.
In the end the table in everflow's store, the ones to which its topics lead, and those of the second
PostgreSQL are compared with the first one's, row for row. Ends with 1 if a row differs.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import psycopg

ROOT = Path(__file__).resolve().parents[1]
# The same servers, transactions and looks into a cluster as the tests of change data.
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from chaos.report import tell  # noqa: E402
from everflow.testing import wait_until  # noqa: E402
from everflow.testing.broker import EmbeddedBroker  # noqa: E402
from integration.debezium.connect import Connect  # noqa: E402
from integration.debezium.postgres import Postgres, binaries, server  # noqa: E402
from integration.debezium.shop import (  # noqa: E402
    COPIES,
    CURRENT,
    DIGEST,
    TABLE,
    UNLINKED,
    Instance,
    connector,
    dsn,
    folded,
    source_rows,
    table_of,
    transaction,
)
from integration.lifecycle.lifecycle_cluster import Cluster, Record  # noqa: E402

CONNECTOR, INSTANCE = "connector", "instance"
PREFIX = "shop"
SOURCE = f"{PREFIX}.public.orders"
IDS = 5_000
CHUNK = 500
"""Transactions that are given to PostgreSQL at a time."""
LONGEST_WAIT_S = 2.0
FLUSH_MS = 10_000
"""What the connector has written since then it writes again after a kill."""
PROGRESS_S = 600.0
SAME_S = 1_800.0
ADD = "ALTER TABLE orders ADD COLUMN extra text DEFAULT 'x';"
DROP = "ALTER TABLE orders DROP COLUMN extra;"
MANY = """
INSERT INTO orders (id, part, flag) SELECT n, 0, true FROM generate_series(1, 300) AS n
ON CONFLICT (id, part) DO UPDATE SET flag = NOT coalesce(orders.flag, false);
"""
"""A transaction of 300 changes, whatever there is: its victim has something to write."""


class Event(NamedTuple):
    """Behind so many transactions the ``victim`` is killed, ``wait_s`` after it has written
    something; or, without one, the table is altered by ``sql``."""

    at: int
    victim: str = ""
    wait_s: float = 0.0
    sql: str = ""


@dataclass
class Report:
    """``repeated``: changes that the connector has written again. Keys whose row differs from the
    source's: ``table_wrong`` of the store, ``stream_wrong`` of the topic of rows, ``copy_wrong`` of
    the second PostgreSQL; ``history_wrong`` of the current versions there, with versions that are
    not linked; ``changes_wrong`` of the rows to which the topic of changes leads, with changes that
    do not follow from those before."""

    seed: int
    transactions: int
    faults: dict[str, int] = field(default_factory=dict)
    records: int = 0
    repeated: int = 0
    rows: int = 0
    table_wrong: int = 0
    stream_wrong: int = 0
    copy_wrong: int = 0
    history_wrong: int = 0
    versions: int = 0
    changes_wrong: int = 0
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        of_topics = self.table_wrong or self.stream_wrong or self.changes_wrong
        return not (of_topics or self.copy_wrong or self.history_wrong)


def deal(transactions: int, kills: int, seed: int) -> list[Event]:
    """What happens in a run, all of it before it begins, in order."""
    chance = random.Random(seed)
    events = [
        Event(chance.randrange(transactions), victim, round(chance.uniform(0, LONGEST_WAIT_S), 2))
        for victim in (CONNECTOR, INSTANCE)
        for _ in range(kills)
    ]
    added, dropped = sorted(chance.sample(range(transactions), 2))
    return sorted([*events, Event(added, sql=ADD), Event(dropped, sql=DROP)])


class Stage:
    """Everything that runs."""

    def __init__(self, folder: Path, bootstrap: str, first: Postgres, second: Postgres) -> None:
        self.first, self.second = first, second
        self.cluster = Cluster(bootstrap, PREFIX)
        connecting = connector(first, PREFIX, schemas=False)
        self.connect = Connect(folder / "connect", bootstrap, connecting, FLUSH_MS)
        settings = {
            "application_id": f"{PREFIX}-app",
            "bootstrap_servers": bootstrap,
            "processing_guarantee": "exactly_once_v2",
            "session_timeout_ms": 6_000,
            "num_stream_threads": 1,
            "state_dir": str(folder / "state"),
        }
        given = {"prefix": PREFIX, "schemas": False, "copy": dsn(second), "settings": settings}
        self.instance = Instance(folder, given)

    @contextmanager
    def running(self) -> Iterator[None]:
        self.first.run(TABLE)
        self.second.run(COPIES)
        self.cluster.make(SOURCE, f"{PREFIX}-copy", f"{PREFIX}-changes", partitions=2)
        try:
            self.connect.start()
            self.instance.start()
            yield
        finally:
            self.instance.kill()
            self.connect.kill()
            self.cluster.close()

    def write(self, transactions: Sequence[str]) -> None:
        """All in one message: on a machine that is busy, each answer takes its time."""
        with psycopg.connect(dsn(self.first), autocommit=True) as connection:
            connection.execute("".join(transactions).encode())

    def strike(self, event: Event) -> None:
        """Kills the victim while it writes, and starts it again."""
        before = self._written(event.victim)
        self.first.run(MANY)
        wait_until(
            lambda: self._alive() and self._written(event.victim) > before,
            PROGRESS_S,
            f"the {event.victim} to write",
            self.history,
        )
        threading.Event().wait(event.wait_s)
        if event.victim == CONNECTOR:
            self.connect.kill()
            self.connect.launch()
        else:
            self.instance.kill()
            self.instance.start()

    def _alive(self) -> bool:
        assert self.instance.alive(), "\n".join(self.instance.history())
        return True

    def _written(self, victim: str) -> int:
        if victim == CONNECTOR:
            return sum(self.cluster.ends(SOURCE, "read_uncommitted").values())
        if not self.second.run("SELECT to_regclass('everflow_positions')").strip():
            return 0
        found = self.second.run("SELECT coalesce(sum(position), 0) FROM everflow_positions")
        return int(found)

    def until_same(self) -> None:
        """Until the second database has what the first one has, or nothing moves any more."""
        wanted = self.first.run(DIGEST)
        wait_until(
            lambda: self._alive() and self.second.run(DIGEST) == wanted and self._all_read(),
            SAME_S,
            f"the copy to be the table, {wanted}",
            self.history,
        )

    def _all_read(self) -> bool:
        ends = self.cluster.ends(SOURCE)
        committed = self.cluster.committed(f"{PREFIX}-app", SOURCE)
        return all(committed.get(tp.partition, (0, ""))[0] >= end for tp, end in ends.items())

    def history(self) -> list[str]:
        ends = {tp.partition: end for tp, end in self.cluster.ends(SOURCE).items()}
        committed = self.cluster.committed(f"{PREFIX}-app", SOURCE)
        found = [self.first.run(DIGEST), self.second.run(DIGEST), f"{ends}, read: {committed}"]
        return [*self.connect.history()[-10:], *self.instance.history()[-15:], *found]


def compare(stage: Stage, report: Report) -> None:
    """Counts what differs; at most five of each are printed."""
    wanted = source_rows(stage.first)
    report.rows = len(wanted)
    source = stage.cluster.read(SOURCE)
    report.records, report.repeated = len(source), len(source) - len(set(map(_change, source)))
    del source
    rows = table_of(stage.cluster.read(f"{PREFIX}-app-orders-changelog"))
    report.table_wrong = _differ("store", rows, wanted)
    rows = table_of(stage.cluster.read(f"{PREFIX}-copy"))
    report.stream_wrong = _differ("topic of rows", rows, wanted)
    report.copy_wrong = _differ("second PostgreSQL", source_rows(stage.second), wanted)
    current = _differ("current versions", source_rows(stage.second, CURRENT), wanted)
    report.history_wrong = current + int(stage.second.run(UNLINKED))
    report.versions = int(stage.second.run("SELECT count(*) FROM orders_history"))
    rows, wrong = folded(stage.cluster.read(f"{PREFIX}-changes"))
    report.changes_wrong = len(wrong) + _differ("topic of changes", rows, wanted)


def _change(record: Record) -> Any:
    """The same for a change that is written again."""
    if record.value is None:
        return record.offset, record.partition
    found = orjson.loads(record.value)
    source = found["source"]
    return source["lsn"] or record.offset, record.key, found["op"], orjson.dumps(found["after"])


def _differ(what: str, found: dict[Any, Any], wanted: dict[Any, Any]) -> int:
    keys = [key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key)]
    for key in keys[:5]:
        print(f"{what}, {key}: {found.get(key)!r:.300}\n  not {wanted.get(key)!r:.300}")
    return len(keys)


def run(transactions: int, kills: int, seed: int, folder: Path) -> Report:
    """One line for each event."""
    events, report = deal(transactions, kills, seed), Report(seed, transactions)
    chance, since = random.Random(seed), time.monotonic()
    with (
        server() as first,
        server() as second,
        EmbeddedBroker(folder / "broker") as broker,
    ):
        stage = Stage(folder, broker.bootstrap_servers, first, second)
        with stage.running():
            done = 0
            for event in [*events, Event(transactions)]:
                while done < event.at:
                    some = min(CHUNK, event.at - done)
                    stage.write([transaction(chance, IDS) for _ in range(some)])
                    done += some
                what = f"the {event.victim} is killed" if event.victim else event.sql
                if event.victim:
                    stage.strike(event)
                    report.faults[event.victim] = report.faults.get(event.victim, 0) + 1
                elif event.sql:
                    first.run(event.sql)
                took = time.monotonic() - since
                print(f"{done} transactions, {took:.0f} s: {what or 'all written'}", flush=True)
            stage.until_same()
            print(f"the copy is the table, {time.monotonic() - since:.0f} s", flush=True)
            compare(stage, report)
    report.seconds = round(time.monotonic() - since, 1)
    return report


def main(arguments: Sequence[str]) -> int:
    """0 if every row is right."""
    parser = argparse.ArgumentParser(
        prog="./run chaos changes",
        description="change data of PostgreSQL under kill -9, then compare the tables",
    )
    parser.add_argument("--transactions", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=10, help="of the connector, and as many ...")
    parser.add_argument("--seed", type=int, default=None, help="default: drawn, and printed")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    options = parser.parse_args(arguments)
    if binaries() is None:
        print("no PostgreSQL is installed: `apt-get install postgresql` brings it", file=sys.stderr)
        return 2
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ef-changes-") as folder:
        report = run(options.transactions, options.kills, seed, Path(folder))
    tell(asdict(report), options.json)
    return 0 if report.clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
