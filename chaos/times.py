"""The same programs over the same input, however they are run: the final results are those of a
plain batch, and of one thread in order of time, and no record is dropped.

Usage: ``./run chaos times [--draws N] [--seed S] [--programs windows,chain,changes,bank]
[--stream-time highest|lowest] [--records N] [--json FILE]``. Draw n has the seed S + n, which
decides all of it before it runs: threads, instances, the size of batches, whether the input is a
backlog or comes at 1,000 records/s, and what happens in the middle, nothing to all of these: an
instance is slow, joins, is killed (-9), drains and leaves, or the input pauses until all of it is
processed. `chaos.times_truth` has the input and the truth. The outputs are read (read_committed)
all the while: a total of the bank that must be 0 at that moment (docs/guide/time.md) and is not is
a difference; an instance is killed in each draw of the bank. A draw takes 10 to 60 s; all draws
share a broker, and the processes of the instances. Ends with 1 if any result differs, or any record
was dropped.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import psutil  # noqa: E402
from confluent_kafka import Consumer, KafkaError, Producer  # noqa: E402
from confluent_kafka import TopicPartition as Place  # noqa: E402

from chaos.elastic_group import Group, GroupFailedError, GroupTimeoutError  # noqa: E402
from chaos.hosted_instances import JOIN, LEAVE, Order  # noqa: E402
from chaos.report import tell  # noqa: E402
from chaos.times_instance import topic_of  # noqa: E402
from chaos.times_one_thread import one_thread  # noqa: E402
from chaos.times_truth import (  # noqa: E402
    BANK,
    PARTITIONS,
    TRUTHS,
    Books,
    Difference,
    Record,
    Results,
    Seen,
    Truth,
    differences,
)
from everflow.kafka.admin import ClusterAdmin  # noqa: E402
from everflow.records import TopicPartition  # noqa: E402
from everflow.testing.broker import EmbeddedBroker  # noqa: E402

SLOW, OUT, KILL, DRAIN, PAUSE = "slow", "scale-out", "kill", "drain", "pause"
KINDS = (SLOW, OUT, KILL, DRAIN, PAUSE)
EVENTS_OF_A_DRAW = (0, 1, 1, 2, len(KINDS))
HIGHEST, LOWEST = "highest", "lowest"
MOST_BATCH = 500_000
BATCHES_OF_A_DRAW = 200
"""A draw with small batches has fewer records: each batch is a transaction."""
LIVE_PER_S, LIVE_EVERY_S = 1_000, 0.02
STOPPED_S, GOING_S, SLOW_FOR_S = 1.2, 0.3, 12.0
"""A slow instance stands still for four fifths of this time, less than a session at once."""
BACK_MS = 5 * 3_600_000
"""The input begins so long ago: all of it is past, and nothing of it is too old for any topic."""
IDLE_MS = 3_000
QUIET_S = 12.0
"""All input is committed, and for so long there was no result: nothing more is waited for. An idle
source has moved by then."""
REPEATED_S = 1.0
"""Results that are right may become wrong for so long."""
START_S, EVENT_S, END_S = 300.0, 300.0, 300.0
POLL_S = 0.1
SHOWN = 5
SETTINGS: Mapping[str, Any] = {
    "session.timeout.ms": 6_000,
    "heartbeat.interval.ms": 500,
    "task.timeout.ms": 120_000,
    "stream.time.idle.ms": IDLE_MS,
}


class Event(NamedTuple):
    """``at``: the share of the input behind which it comes."""

    kind: str
    at: float

    def __str__(self) -> str:
        return f"{self.kind} at {self.at:.0%}"


class Draw(NamedTuple):
    """``batch``: records at most. ``events``: in the order of their shares, one of a kind."""

    seed: int
    program: str
    threads: int
    instances: int
    batch: int
    records: int
    live: bool
    events: tuple[Event, ...]

    def __str__(self) -> str:
        source = f"live, {LIVE_PER_S}/s" if self.live else "from a backlog"
        events = ", ".join(map(str, self.events)) or "nothing happens"
        return (
            f"seed {self.seed}, {self.program}: {self.records} records {source}, "
            f"{self.instances} x {self.threads} threads, batches of {self.batch}, {events}"
        )


def draw(seed: int, programs: Sequence[str], records: int) -> Draw:
    """All of a draw."""
    program = programs[seed % len(programs)]
    chance = random.Random(f"{seed} {program}")
    kinds = chance.sample(KINDS, chance.choice(EVENTS_OF_A_DRAW))
    if program == BANK and KILL not in kinds:
        kinds.append(KILL)
    shares = sorted(round(chance.uniform(0.1, 0.8), 2) for _ in kinds)
    least, most = 2 if SLOW in kinds else 1, 2 if OUT in kinds else 3
    batch = min(MOST_BATCH, int(MOST_BATCH ** chance.uniform(0, 1.05)))
    return Draw(
        seed=seed,
        program=program,
        threads=chance.choice((1, 2, 4)),
        instances=chance.randint(least, most),
        batch=batch,
        records=min(records, batch * BATCHES_OF_A_DRAW),
        live=chance.random() < 0.4,
        events=tuple(map(Event, kinds, shares)),
    )


@dataclass
class Outcome:
    """``dropped``: records, by the instances. ``struck``: the shares of the input that were
    committed (live: sent) when the events came. ``one_thread``: where the results of one thread in
    order of time are not those expected. ``zeros``: how often a total of the bank was 0 when it
    must be; where it was not is in ``found``. ``on_the_way``: totals that may be anything."""

    draw: Draw
    expected: int = 0
    found: list[Difference] = field(default_factory=list)
    one_thread: list[Difference] = field(default_factory=list)
    dropped: int = 0
    struck: list[float] = field(default_factory=list)
    zeros: int = 0
    on_the_way: int = 0
    seconds: float = 0.0
    failure: str = ""

    @property
    def clean(self) -> bool:
        return not (self.found or self.one_thread or self.dropped or self.failure)

    def told(self) -> dict[str, Any]:
        """For JSON."""
        kinds = [one.kind for one in self.found]
        lists = ("draw", "found", "one_thread")
        return {
            **self.draw._asdict(),
            **{name: value for name, value in asdict(self).items() if name not in lists},
            "differences": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
            "first": [one._asdict() for one in self.found[:SHOWN]],
            "one_thread": [one._asdict() for one in self.one_thread[:SHOWN]],
        }


class Load(threading.Thread):
    """Sends the records in their order, up to the one at which it pauses: all at once, or as a
    thread at `LIVE_PER_S`."""

    def __init__(
        self, bootstrap: str, application: str, records: Sequence[Record], pause_at: float | None
    ) -> None:
        super().__init__(daemon=True)
        self._application, self._records, self.sent = application, records, 0
        self._goes_on = threading.Event()
        self.paused_at = len(records)
        if pause_at is not None:
            self.paused_at = math.ceil(pause_at * len(records))
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "partitioner": "murmur2",
                "linger.ms": 5,
            }
        )

    def run(self) -> None:
        self._live(self.paused_at)
        self._goes_on.wait()
        self._live(len(self._records))

    def go_on(self) -> None:
        """Behind the pause."""
        self._goes_on.set()
        if not self.is_alive():
            self.send(len(self._records) - self.sent)

    def _live(self, until: int) -> None:
        pause, began, first = threading.Event(), time.monotonic(), self.sent
        while self.sent < until:
            due = first + int((time.monotonic() - began) * LIVE_PER_S)
            self.send(min(due, until) - self.sent)
            pause.wait(LIVE_EVERY_S)

    def send(self, count: int) -> None:
        """The next ones; returns when the broker has them."""
        for one in self._records[self.sent : self.sent + count]:
            topic, value = topic_of(self._application, one.topic), json.dumps(one.value)
            by_key = -1  # as the producer says
            place = by_key if one.partition is None else one.partition
            self._producer.produce(topic, value, one.key, place, timestamp=one.time)
        assert self._producer.flush(60) == 0
        self.sent = min(len(self._records), self.sent + count)


class Reader:
    """Reads what is committed of the outputs. ``books``: what the totals of a bank must be at each
    moment. ``admin`` is asked for the ends of the logs."""

    def __init__(self, admin: ClusterAdmin, bootstrap: str, application: str, truth: Truth) -> None:
        self._admin, self._ends = admin, dict[TopicPartition, int]()
        self._outputs = {topic_of(application, output): output for output in truth.outputs}
        self.seen, self.books = Seen(truth), Books()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{application}-reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        self._reached = {
            TopicPartition(topic, p): 0 for topic in self._outputs for p in range(PARTITIONS)
        }
        """Everything in front of it was read, and no transaction is open there."""
        self._consumer.assign([Place(*tp, 0) for tp in self._reached])

    def read(self) -> None:
        """What has come. What was written before a final total is looked at as soon as all of it
        was read: it may be in the log of another partition, and the end of its transaction too."""
        self._take()
        if self.books.looks_at and self.has_read(self._ends):
            self.books.look()
        if not self.books.looks_at and self.books.begin():
            self._ends = self.ends()

    def _take(self) -> None:
        while found := self._consumer.consume(20_000, 0.05):
            for one in found:
                tp = TopicPartition(str(one.topic()), int(one.partition() or 0))
                error, offset = one.error(), int(one.offset() or 0)
                if error is None:
                    key, value = (one.key() or b"").decode(), one.value()
                    self._add(self._outputs[tp.topic], key, value)
                    self._reached[tp] = offset + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._reached[tp] = max(offset, self._reached[tp])
                else:
                    raise AssertionError(error)

    def _add(self, output: str, key: str, encoded: bytes | None) -> None:
        value = None if encoded is None else json.loads(encoded)
        self.seen.add(output, key, value)
        self.books.add(output, key, value)

    def has_read(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether everything in front of ``ends`` was read, open transactions included."""
        return all(self._reached[tp] >= end for tp, end in ends.items())

    def ends(self) -> dict[TopicPartition, int]:
        """Of the outputs, open transactions included."""
        return self._admin.end_offsets(list(self._reached), "read_uncommitted")

    def close(self) -> None:
        """Leave the broker."""
        self._consumer.close()


class TimesRun:
    """The draws on one broker, one after the other. Owned by one thread."""

    def __init__(
        self, broker: EmbeddedBroker, group: Group, stream_time: str, base_ms: int
    ) -> None:
        self._broker, self._group = broker, group
        self._stream_time, self._base_ms = stream_time, base_ms
        self._admin = ClusterAdmin({"bootstrap.servers": broker.bootstrap_servers})

    def run(self, one: Draw) -> Outcome:
        """A draw; leaves neither members nor topics."""
        outcome, since = Outcome(one), time.monotonic()
        try:
            _DrawRun(self._broker, self._group, self._admin, self._settings(one), outcome).run(
                self._base_ms
            )
        except GroupFailedError as error:
            print(error, flush=True)
            outcome.failure = str(error).splitlines()[0]
            for process in self._group.living():
                self._group.kill(process.instance, whole=True)
        outcome.seconds = round(time.monotonic() - since, 1)
        application = application_of(one)
        self._admin.delete_topics(
            name for name in self._admin.list_topics() if name.startswith(application)
        )
        for folder in self._group.folder.glob(f"disk-*/*/{application}"):
            shutil.rmtree(folder)
        return outcome

    def close(self) -> None:
        """Leave the broker."""
        self._admin.close()

    def _settings(self, one: Draw) -> Mapping[str, Any]:
        return {
            "num.stream.threads": one.threads,
            "max.batch.records": one.batch,
            "stream.time": self._stream_time,
        }


def application_of(one: Draw) -> str:
    return f"times-{one.seed}-{one.program}"


class _DrawRun:
    def __init__(
        self,
        broker: EmbeddedBroker,
        group: Group,
        admin: ClusterAdmin,
        settings: Mapping[str, Any],
        outcome: Outcome,
    ) -> None:
        self._broker, self._group, self._admin = broker, group, admin
        self._settings, self._outcome, self._draw = settings, outcome, outcome.draw
        self._application, self._truth = application_of(outcome.draw), TRUTHS[outcome.draw.program]
        self._members: set[int] = set()
        self._slow = Slowness()

    def run(self, base_ms: int) -> None:
        one, truth = self._draw, self._truth
        records = truth.records(one.records, base_ms, random.Random(one.seed))
        expected = truth.results(records)
        self._outcome.expected = len(expected)
        seen = one_thread(one.program, truth, records)
        self._outcome.one_thread = differences(expected, seen)
        for topic in (*truth.topics, *truth.outputs):
            self._broker.create_topic(topic_of(self._application, topic), PARTITIONS)
        shares = {event.kind: event.at for event in one.events}
        servers = self._broker.bootstrap_servers
        load = Load(servers, self._application, records, shares.get(PAUSE))
        if not one.live:
            load.send(load.paused_at)
        with closing(Reader(self._admin, servers, self._application, truth)) as self._reader:
            for instance in range(1, one.instances + 1):
                self._join(instance)
            self._wait("instances to run", self._running, START_S)
            if one.live:
                load.start()
            with closing(self._slow):
                for event in one.events:
                    self._happen(event, load, len(records))
                self._end(load, expected, len(records))
            for instance in sorted(self._members):
                self._leave(instance)
            self._at_rest()
            self._outcome.found = self._reader.books.wrong + differences(
                expected, self._reader.seen
            )
            self._outcome.zeros = self._reader.books.zeros
            self._outcome.on_the_way = self._reader.books.on_the_way
        self._outcome.dropped = self._dropped()

    # --- what happens ----------------------------------------------------------------------------

    def _happen(self, event: Event, load: Load, total: int) -> None:
        """When its share of the input is done. It concerns the last of the instances."""

        def share() -> float:
            return (load.sent if self._draw.live else self._committed()) / total

        self._wait(f"{event.at:.0%} of the input", lambda: share() >= event.at, EVENT_S)
        self._outcome.struck.append(round(share(), 2))
        last = max(self._members)
        if event.kind == SLOW:
            self._slow.begin(self._group.of(last).family())
        elif event.kind == OUT:
            self._join(last + 1)
        elif event.kind == KILL:
            self._group.kill(last, whole=True)
            self._members.discard(last)
            self._join(last)
        elif event.kind == DRAIN:
            self._leave(last)
            if not self._members:
                self._join(last)
        else:
            self._wait("the input before the pause", lambda: self._done(load.sent), EVENT_S)
            self._at_rest()
            load.go_on()

    def _done(self, sent: int) -> bool:
        """Whether all that was sent, and all that was made of it, is processed: between two looks,
        both of which find nothing unread, nothing was written."""
        if self._committed() < sent:
            return False
        before, after = self._unread(), self._unread()
        return before == after and not any(unread for _, unread in after.values())

    def _unread(self) -> dict[TopicPartition, tuple[int, int]]:
        """The end of each partition between sub-topologies, and how much of it is unread."""
        between = [
            TopicPartition(topic, partition)
            for topic, shape in self._admin.list_topics().items()
            if topic.startswith(f"{self._application}-") and not topic.endswith("-changelog")
            for partition in range(shape.partitions)
        ]
        read = self._admin.committed(self._application, between, 30.0)
        ends = self._admin.end_offsets(between, "read_uncommitted")
        return {
            tp: (end, end - (max(0, read[tp].offset) if tp in read else 0))
            for tp, end in ends.items()
        }

    def _at_rest(self) -> None:
        """Nothing is unread: the bank's total is 0, and that of what was final so far."""
        ends, books = self._reader.ends(), self._reader.books
        self._wait(
            "the outputs' ends",
            lambda: self._reader.has_read(ends) and not (books.looks_at or books.due),
            EVENT_S,
        )
        books.rest()

    def _end(self, load: Load, expected: Results, total: int) -> None:
        """Until the results are those expected, or nothing more is to come."""
        seen = self._reader.seen
        told, since, right = (-1, -1), 0.0, False

        def ended() -> bool:
            nonlocal told, since, right
            now = (seen.read, self._committed())
            if now != told:
                told, since = now, time.monotonic()
                right = not differences(expected, seen)
            if load.sent < total or told[1] < total:
                return False
            return time.monotonic() - since >= (REPEATED_S if right else QUIET_S)

        try:
            self._wait("the end of the results", ended, END_S)
        except GroupTimeoutError as error:
            print(error, flush=True)
            done = f"{self._committed()} of {total} records of the input committed"
            self._outcome.failure = f"not ended after {END_S:.0f} s, {done}"

    # --- instances -------------------------------------------------------------------------------

    def _order(self, word: str, instance: int) -> str:
        given = {"name": self._draw.program, "application": self._application}
        return str(Order(word, f"i{instance}", self._application, given, self._settings))

    def _join(self, instance: int) -> None:
        if instance not in {process.instance for process in self._group.living()}:
            self._group.start(instance)
        self._group.of(instance).tell(self._order(JOIN, instance))
        self._members.add(instance)

    def _leave(self, instance: int) -> None:
        self._group.of(instance).tell(self._order(LEAVE, instance))
        self._members.discard(instance)
        self._wait(f"instance {instance} to leave", lambda: self._state(instance) == ENDED, START_S)

    def _state(self, instance: int) -> str:
        """By its own account, in its present process."""
        return next(
            (
                event.fields["state"]
                for event in reversed(self._group.of(instance).events.read())
                if event.kind == "member" and event.fields["application"] == self._application
            ),
            "",
        )

    def _running(self) -> bool:
        return all(self._state(instance) == RUNNING for instance in self._members)

    def _committed(self) -> int:
        """Records of the input."""
        inputs = [
            TopicPartition(topic_of(self._application, topic), partition)
            for topic in self._truth.topics
            for partition in range(PARTITIONS)
        ]
        found = self._admin.committed(self._application, inputs, 30.0)
        return sum(max(0, found[tp].offset) for tp in inputs if tp in found)

    def _dropped(self) -> int:
        latest: dict[tuple[str, str], int] = {}
        for process in self._group.processes:
            for event in process.events.read():
                if event.kind == "dropped" and event.fields["application"] == self._application:
                    # A member that came back in the same process counts from 0.
                    before = latest.get((process.name, event.fields["name"]), 0)
                    now = int(event.fields["records"])
                    latest[process.name, event.fields["name"]] = max(before, now)
        return sum(latest.values())

    def _wait(self, what: str, reached: Any, timeout_s: float) -> None:
        def read_and_reached() -> bool:
            self._reader.read()
            return bool(reached())

        self._group.wait(what, read_and_reached, timeout_s, poll_s=POLL_S)


class Slowness:
    """The processes of an instance stand still again and again, for `SLOW_FOR_S`; close it."""

    def __init__(self) -> None:
        self._family: list[psutil.Process] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self, family: Sequence[psutil.Process]) -> None:
        self._family = list(family)
        self._thread.start()

    def close(self) -> None:
        """All of them go on."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        deadline = time.monotonic() + SLOW_FOR_S
        while time.monotonic() < deadline and not self._over.is_set():
            self._say(signal.SIGSTOP)
            self._over.wait(STOPPED_S)
            self._say(signal.SIGCONT)
            self._over.wait(GOING_S)

    def _say(self, name: signal.Signals) -> None:
        for process in self._family:
            with suppress(psutil.NoSuchProcess):  # one that was killed, or has left
                process.send_signal(name)


RUNNING, ENDED = "RUNNING", "NOT_RUNNING"


def show(outcome: Outcome, number: int, of: int) -> None:
    """A line, and one for each of the first differences."""
    result = "clean" if outcome.clean else outcome.failure or "DIFFERS"
    kinds = outcome.told()["differences"]
    bank = f", {outcome.zeros} totals 0 as they must be" if outcome.on_the_way else ""
    print(
        f"{number}/{of} {outcome.draw}: {result}; {outcome.expected} expected, {kinds or 'none'} "
        f"differ, {outcome.dropped} dropped{bank}, {outcome.seconds:.0f} s",
        flush=True,
    )
    if outcome.one_thread:
        print(f"   one thread in order of time: {len(outcome.one_thread)} differ", flush=True)
    for one in (*outcome.one_thread[:SHOWN], *outcome.found[:SHOWN]):
        print(
            f"   {one.output} {one.key} is {one.kind}: expected {one.expected}, seen {one.seen}",
            flush=True,
        )


def run(draws: Sequence[Draw], stream_time: str, folder: Path, base_ms: int) -> list[Outcome]:
    """All draws on one broker in ``folder``."""
    outcomes = []
    with EmbeddedBroker(folder / "broker") as broker:
        servers, module = broker.bootstrap_servers, "chaos.times_instance"
        group = Group("times", servers, folder, PARTITIONS, SETTINGS, module=module)
        with closing(group), closing(TimesRun(broker, group, stream_time, base_ms)) as times:
            for number, one in enumerate(draws, 1):
                outcomes.append(times.run(one))
                show(outcomes[-1], number, len(draws))
    return outcomes


def base_of(now_s: float) -> int:
    """Where the input begins, ms: a full hour."""
    return (int(now_s * 1000) - BACK_MS) // 3_600_000 * 3_600_000


def _programs(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in TRUTHS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(TRUTHS)}")
    return names


def main(arguments: Sequence[str]) -> int:
    """0 if every draw is clean."""
    parser = argparse.ArgumentParser(
        prog="./run chaos times", description="one answer, however a program is run"
    )
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None, help="default: drawn, and printed")
    parser.add_argument("--programs", type=_programs, default=list(TRUTHS), metavar="NAME,...")
    parser.add_argument("--stream-time", choices=(HIGHEST, LOWEST), default=LOWEST)
    parser.add_argument("--records", type=int, default=6_000, help="of a draw, at most")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    draws = [draw(seed + at, options.programs, options.records) for at in range(options.draws)]
    base_ms = base_of(time.time())
    print(f"seeds {seed} to {seed + options.draws - 1}, input from {base_ms} ms on", flush=True)
    with tempfile.TemporaryDirectory(prefix="ef-times-") as folder:
        outcomes = run(draws, options.stream_time, Path(folder), base_ms)
    told = {
        "stream_time": options.stream_time,
        "base_ms": base_ms,
        "seeds": [one.seed for one in draws],
        "not_clean": [one.draw.seed for one in outcomes if not one.clean],
        "draws": [one.told() for one in outcomes],
    }
    tell(told, options.json)
    return 0 if not told["not_clean"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
