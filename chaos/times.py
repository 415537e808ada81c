"""The same programs over the same input, however they are run: the final results are those of a
plain batch in order of time, and no record is dropped.

Usage: ``./run chaos times [--draws N] [--seed S] [--programs windows,chain,changes,bank]
[--stream-time highest|lowest] [--records N] [--json FILE]``. Draw n has the seed S + n, which
decides all of it before it runs: threads, instances, the size of batches, whether the input is a
backlog or comes at 1,000 records/s, and what happens in the middle: an instance is slow, joins, is
killed (-9), or drains and leaves. `chaos.times_truth` has the input and the truth. A draw takes 10
to 40 s; all draws share a broker, and the processes of the instances. Ends with 1 if any result
differs, or any record was dropped.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import psutil  # noqa: E402
from confluent_kafka import Consumer, Producer  # noqa: E402
from confluent_kafka import TopicPartition as Place  # noqa: E402

from chaos.elastic_group import Group, GroupFailedError, GroupTimeoutError  # noqa: E402
from chaos.hosted_instances import JOIN, LEAVE, Order  # noqa: E402
from chaos.report import tell  # noqa: E402
from chaos.times_instance import topic_of  # noqa: E402
from chaos.times_truth import (  # noqa: E402
    ALL,
    PARTITIONS,
    TRUTHS,
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

NOTHING, SLOW, OUT, KILL, DRAIN = "nothing", "slow", "scale-out", "kill", "drain"
EVENTS = (NOTHING, SLOW, OUT, KILL, DRAIN)
HIGHEST, LOWEST = "highest", "lowest"
MOST_BATCH = 500_000
BATCHES_OF_A_DRAW = 400
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
START_S, EVENT_S, END_S = 300.0, 120.0, 300.0
POLL_S = 0.1
SHOWN = 5
SETTINGS: Mapping[str, Any] = {
    "session.timeout.ms": 6_000,
    "heartbeat.interval.ms": 500,
    "task.timeout.ms": 120_000,
    "stream.time.idle.ms": IDLE_MS,
}


class Draw(NamedTuple):
    """``at``: the share of the input behind which ``event`` comes. ``batch``: records at most."""

    seed: int
    program: str
    threads: int
    instances: int
    batch: int
    records: int
    live: bool
    event: str
    at: float

    def __str__(self) -> str:
        source = f"live, {LIVE_PER_S}/s" if self.live else "from a backlog"
        event = self.event if self.event == NOTHING else f"{self.event} at {self.at:.0%}"
        return (
            f"seed {self.seed}, {self.program}: {self.records} records {source}, "
            f"{self.instances} x {self.threads} threads, batches of {self.batch}, {event}"
        )


def draw(seed: int, programs: Sequence[str], records: int) -> Draw:
    """All of a draw."""
    program = programs[seed % len(programs)]
    chance = random.Random(f"{seed} {program}")
    event = chance.choice(EVENTS)
    least, most = 2 if event == SLOW else 1, 2 if event == OUT else 3
    batch = min(MOST_BATCH, int(MOST_BATCH ** chance.uniform(0, 1.05)))
    return Draw(
        seed=seed,
        program=program,
        threads=chance.choice((1, 2, 4)),
        instances=chance.randint(least, most),
        batch=batch,
        records=min(records, batch * BATCHES_OF_A_DRAW),
        live=chance.random() < 0.4,
        event=event,
        at=round(chance.uniform(0.1, 0.8), 2),
    )


@dataclass
class Outcome:
    """``dropped``: records, by the instances. ``struck``: the share of the input that was
    committed (live: sent) when the event came. ``not_zero``: of the totals of the bank that were
    read on the way, those that were not 0."""

    draw: Draw
    expected: int = 0
    found: list[Difference] = field(default_factory=list)
    dropped: int = 0
    struck: float | None = None
    totals: int = 0
    not_zero: int = 0
    seconds: float = 0.0
    failure: str = ""

    @property
    def clean(self) -> bool:
        return not (self.found or self.dropped or self.failure)

    def told(self) -> dict[str, Any]:
        """For JSON."""
        kinds = [one.kind for one in self.found]
        return {
            **self.draw._asdict(),
            **{
                name: value for name, value in asdict(self).items() if name not in ("draw", "found")
            },
            "differences": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
            "first": [one._asdict() for one in self.found[:SHOWN]],
        }


class Load(threading.Thread):
    """Sends the records in their order: all at once, or as a thread at `LIVE_PER_S`."""

    def __init__(self, bootstrap: str, application: str, records: Sequence[Record]) -> None:
        super().__init__(daemon=True)
        self._application, self._records, self.sent = application, records, 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "partitioner": "murmur2",
                "linger.ms": 5,
            }
        )

    def run(self) -> None:
        pause, began = threading.Event(), time.monotonic()
        while self.sent < len(self._records):
            self.send(int((time.monotonic() - began) * LIVE_PER_S) - self.sent)
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
    """Reads what is committed of the outputs."""

    def __init__(self, bootstrap: str, application: str, truth: Truth) -> None:
        self._outputs = {topic_of(application, output): output for output in truth.outputs}
        self.seen, self.totals, self.not_zero = Seen(truth), 0, 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{application}-reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        places = [Place(topic, p, 0) for topic in self._outputs for p in range(PARTITIONS)]
        self._consumer.assign(places)

    def read(self) -> None:
        """What has come."""
        while found := self._consumer.consume(20_000, 0.05):
            for one in found:
                assert one.error() is None, one.error()
                key = (one.key() or b"").decode()
                self._add(self._outputs[str(one.topic())], key, one.value())

    def _add(self, output: str, key: str, encoded: bytes | None) -> None:
        value = None if encoded is None else json.loads(encoded)
        self.seen.add(output, key, value)
        if output == "bank" and key == ALL and value is not None:
            self.totals += 1
            self.not_zero += value["total"] != 0

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

    def run(self, base_ms: int) -> None:
        one, truth = self._draw, self._truth
        records = truth.records(one.records, base_ms, random.Random(one.seed))
        expected = truth.results(records)
        self._outcome.expected = len(expected)
        for topic in (*truth.topics, *truth.outputs):
            self._broker.create_topic(topic_of(self._application, topic), PARTITIONS)
        load = Load(self._broker.bootstrap_servers, self._application, records)
        if not one.live:
            load.send(len(records))
        for instance in range(1, one.instances + 1):
            self._join(instance)
        with closing(Reader(self._broker.bootstrap_servers, self._application, truth)) as reader:
            self._wait("instances to run", self._running, START_S)
            if one.live:
                load.start()
            self._happen(load, len(records))
            self._end(reader, load, expected, len(records))
            for instance in sorted(self._members):
                self._leave(instance)
            reader.read()
            self._outcome.found = differences(expected, reader.seen)
            self._outcome.totals, self._outcome.not_zero = reader.totals, reader.not_zero
        self._outcome.dropped = self._dropped()

    # --- what happens ----------------------------------------------------------------------------

    def _happen(self, load: Load, total: int) -> None:
        """The event, when its share of the input is done."""
        one = self._draw

        def share() -> float:
            return (load.sent if one.live else self._committed()) / total

        if one.event in (NOTHING, SLOW):
            return
        self._wait(f"{one.at:.0%} of the input", lambda: share() >= one.at, EVENT_S)
        self._outcome.struck = round(share(), 2)
        if one.event == OUT:
            self._join(one.instances + 1)
        elif one.event == KILL:
            self._group.kill(one.instances, whole=True)
            self._members.discard(one.instances)
            self._join(one.instances)
        else:
            self._leave(one.instances)
            if not self._members:
                self._join(one.instances)

    def _end(self, reader: Reader, load: Load, expected: Results, total: int) -> None:
        """Until the results are those expected, or nothing more is to come."""
        told, since, right = (-1, -1), 0.0, False

        def ended() -> bool:
            nonlocal told, since, right
            reader.read()
            now = (reader.seen.read, self._committed())
            if now != told:
                told, since = now, time.monotonic()
                right = not differences(expected, reader.seen)
            if load.sent < total or told[1] < total:
                return False
            return time.monotonic() - since >= (REPEATED_S if right else QUIET_S)

        with self._slowed():
            try:
                self._wait("the end of the results", ended, END_S)
            except GroupTimeoutError as error:
                print(error, flush=True)
                done = f"{self._committed()} of {total} records of the input committed"
                self._outcome.failure = f"not ended after {END_S:.0f} s, {done}"

    @contextmanager
    def _slowed(self) -> Iterator[None]:
        """The last instance stands still again and again, if that is drawn."""
        if self._draw.event != SLOW:
            yield
            return
        family, over = self._group.of(self._draw.instances).family(), threading.Event()

        def say(name: signal.Signals) -> None:
            for process in family:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(name)

        def slow() -> None:
            deadline = time.monotonic() + SLOW_FOR_S
            while time.monotonic() < deadline and not over.is_set():
                say(signal.SIGSTOP)
                over.wait(STOPPED_S)
                say(signal.SIGCONT)
                over.wait(GOING_S)

        thread = threading.Thread(target=slow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

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
        self._group.wait(what, reached, timeout_s, poll_s=POLL_S)


RUNNING, ENDED = "RUNNING", "NOT_RUNNING"


def show(outcome: Outcome, number: int, of: int) -> None:
    """A line, and one for each of the first differences."""
    result = "clean" if outcome.clean else outcome.failure or "DIFFERS"
    kinds = outcome.told()["differences"]
    bank = f", {outcome.not_zero} of {outcome.totals} totals not 0" if outcome.totals else ""
    print(
        f"{number}/{of} {outcome.draw}: {result}; {outcome.expected} expected, {kinds or 'none'} "
        f"differ, {outcome.dropped} dropped{bank}, {outcome.seconds:.0f} s",
        flush=True,
    )
    for one in outcome.found[:SHOWN]:
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
