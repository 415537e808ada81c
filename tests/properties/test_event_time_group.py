"""A drawn group with ``stream.time=lowest`` drops no record that the rule keeps, and stands still
for no longer than the idleness time-out (note 076).

``EVERFLOW_SIMULATIONS=1000 ./run test tests/properties/test_event_time_group.py`` runs so many
seeds instead of a few."""

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from everflow import StreamsBuilder, Suppressed, TimeWindows, serdes
from everflow.instance.thread import progress
from everflow.records import LATE
from everflow.testing import TopologyTestDriver
from everflow.testing.topics import RawRecord
from everflow.topology.event_time import Told
from properties.event_time_group import FIRST_MS, IDLE_MS, Group

TEXT, LONG = serdes.string(), serdes.long()
PARTITIONS = 3
BEGIN_MS = 1_000_000_000_000
MINUTE_MS = 60_000
LATE_BY_MS = 8 * MINUTE_MS
SPAN_MS = 120 * MINUTE_MS
RECORDS = 300
BACKLOG_MS, LIVE_MS = 50.0, 4_000.0
SLACK_MS = 2_500.0
"""Two batches of a slow instance, and questions between them."""
END_MS = 300_000.0
SEEDS = range(int(os.environ.get("EVERFLOW_SIMULATIONS", "10")))
LESS_SEEDS = range(20)


def _merged(builder: StreamsBuilder) -> None:
    """A task without state reads a topic and a repartition topic."""
    some = builder.stream("one", key=TEXT, value=LONG)
    some = some.select_key(lambda key, value: str(value % 4), returns="string")
    some = some.repartition(name="some", value=LONG)
    _counts(some.merge(builder.stream("two", key=TEXT, value=LONG)))


def _windows(builder: StreamsBuilder) -> None:
    _counts(builder.stream("one", key=TEXT, value=LONG))


def _counts(sales: Any) -> None:
    keyed = sales.select_key(lambda key, value: str(value % 4), returns="string")
    windows = TimeWindows.of_size("5 minutes").grace("10 minutes")
    counted = keyed.group_by_key(name="by").windowed_by(windows).count(store="counts")
    final = counted.suppress(Suppressed.until_window_closes(), store="held")
    again = final.to_stream().select_key(lambda key, value: "all", returns="string")
    wide = TimeWindows.of_size("10 minutes").grace("1 minute")
    final = (
        again.group_by_key(name="all")
        .windowed_by(wide)
        .reduce(lambda one, two: one + two, store="sums")
    )
    _to_out(final.to_stream())


def _to_out(stream: Any) -> None:
    texts = stream.map(lambda key, value: (str(key), str(value)), returns=("string", "string"))
    texts.to("out", key=TEXT, value=TEXT)


class Engine:
    def __init__(self, build: Callable[[StreamsBuilder], None]) -> None:
        self.builder = StreamsBuilder()
        build(self.builder)
        self.driver = TopologyTestDriver(
            self.builder.build(), partitions=PARTITIONS, dead_letter_topic="dead"
        )


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    found = Engine(_windows)
    yield found
    found.driver.close()


@pytest.fixture(scope="module")
def merging() -> Iterator[Engine]:
    found = Engine(_merged)
    yield found
    found.driver.close()


def drawn(chance: random.Random) -> list[tuple[float, RawRecord]]:
    """When each record comes: a part as a backlog, the rest in the order of its own times. A
    partition may stay empty. Behind it nothing comes that is late in its partition's order."""
    times = sorted(chance.sample(range(BEGIN_MS, BEGIN_MS + SPAN_MS), RECORDS))
    used = chance.sample(range(PARTITIONS), chance.choice([2, PARTITIONS, PARTITIONS]))
    shares = [chance.choice([1, 1, 5]) for _ in used]
    backlog = chance.choice([0.5, 1.0, 1.0])
    late = [chance.random() < 0.1 for _ in times]
    order = sorted(
        range(RECORDS), key=lambda n: times[n] + late[n] * chance.randrange(LATE_BY_MS + 1)
    )
    found = []
    for place, n in enumerate(order):
        share = place / RECORDS
        live = max(0.0, share - backlog) / max(1e-9, 1 - backlog)
        at_ms = BACKLOG_MS if share < backlog else BACKLOG_MS + live * LIVE_MS
        value = LONG.encode(n)
        partition = chance.choices(used, shares)[0]
        found.append((at_ms, RawRecord("one", b"any", value, times[n], partition=partition)))
    return found


def run(
    engine: Engine,
    seed: int,
    pause: tuple[float, float] | None = None,
    deadly: bytes | None = None,
    *,
    two_topics: bool = False,
    arrivals: list[tuple[float, RawRecord]] | None = None,
    moves: int | None = None,
    most_records: int | None = None,
) -> Group:
    chance = random.Random(seed)
    arrivals = drawn(chance) if arrivals is None else arrivals
    if two_topics:
        names = ("one", "two")
        arrivals = [(at, replace(one, topic=chance.choice(names))) for at, one in arrivals]
    group = Group(
        engine=engine.driver,
        builder=engine.builder,
        arrivals=arrivals,
        chance=chance,
        lead_ms=chance.choice([MINUTE_MS, 30 * MINUTE_MS]),
        moves=chance.choice([0, 0, 5]) if moves is None else moves,
        pause=pause,
        deadly=deadly,
    )
    group.most_records = most_records or group.most_records
    group.run(END_MS)
    return group


def counted(group: Group) -> int:
    """How many sales the last results of the windows have together."""
    last = {one.key: one.value for one in group.written if one.topic == "out"}
    return sum(int(value) for value in last.values() if value is not None)


def closed_sales(group: Group) -> int:
    """Those in first windows that have closed at the highest time."""
    times = [record.timestamp for _, record in group.arrivals]
    size, grace = 5 * MINUTE_MS, 10 * MINUTE_MS
    return sum(ms // size * size + size + grace <= max(times) for ms in times)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_dropped_and_nothing_stands_still(engine: Engine, seed: int) -> None:
    group = run(engine, seed)
    assert group.dropped[LATE] == 0
    assert not group.unread
    assert counted(group) == closed_sales(group)
    pauses = [later - before for before, later in pairwise(group.commits)]
    assert max(pauses) < IDLE_MS + SLACK_MS


OUTAGE_SEEDS = range(6)
OUTAGE_MS = FIRST_MS + 3 * IDLE_MS
AGAIN_WITHIN_MS = 2_000.0


@pytest.mark.parametrize("seed", OUTAGE_SEEDS)
def test_behind_an_outage_of_all_sources_everybody_is_waited_for_again(
    engine: Engine, seed: int
) -> None:
    """All were silent; then each partition has at once what it would have had, one behind another
    one."""
    chance = random.Random(seed)
    again = [OUTAGE_MS + chance.uniform(0, AGAIN_WITHIN_MS) for _ in range(PARTITIONS)]
    arrivals = [
        (at if place < RECORDS // 3 else again[record.partition or 0], record)
        for place, (at, record) in enumerate(drawn(chance))
    ]
    group = run(engine, seed, arrivals=sorted(arrivals, key=lambda one: one[0]))
    assert group.dropped[LATE] == 0
    assert not group.unread
    assert counted(group) == closed_sales(group)


MOVING_SEEDS = range(8)


@pytest.mark.parametrize("seed", MOVING_SEEDS)
def test_a_task_goes_on_wherever_it_was_interrupted(engine: Engine, seed: int) -> None:
    """Also behind a batch that took less than it could have taken."""
    group = run(engine, seed, moves=200, most_records=2)
    assert group.dropped[LATE] == 0
    assert not group.unread
    assert counted(group) == closed_sales(group)


MERGED_SEEDS = range(4)


@pytest.mark.parametrize("seed", MERGED_SEEDS)
def test_a_topic_that_is_merged_with_a_re_keyed_one_holds_it_up_only_until_it_is_read(
    merging: Engine, seed: int
) -> None:
    group = run(merging, seed, two_topics=True)
    assert group.dropped[LATE] == 0
    assert not group.unread
    assert counted(group) == closed_sales(group)


AHEAD_SEEDS = range(3)
FUTURE_MS = 1_800_000_000_000


@pytest.mark.parametrize("seed", AHEAD_SEEDS)
def test_a_clock_that_is_ahead_costs_nothing_while_all_goes_on(engine: Engine, seed: int) -> None:
    """The partition with that record is read on, though others are far behind its time."""
    chance = random.Random(seed)
    times = sorted(chance.sample(range(BEGIN_MS, BEGIN_MS + SPAN_MS), RECORDS))
    arrivals = []
    for number, ms in enumerate(times):
        at_ms = 500 + LIVE_MS * (ms - BEGIN_MS) / SPAN_MS
        partition = 1 if number == AHEAD else chance.randrange(PARTITIONS)
        time_ms = FUTURE_MS if number == AHEAD else ms
        record = RawRecord("one", b"any", LONG.encode(number), time_ms, partition=partition)
        arrivals.append((at_ms, record))
    group = Group(
        engine=engine.driver,
        builder=engine.builder,
        arrivals=arrivals,
        chance=chance,
        lead_ms=30 * MINUTE_MS,
    )
    group.run(END_MS)
    assert group.dropped[LATE] == 0
    assert not group.unread
    assert counted(group) == closed_sales(group)


AHEAD = 80
PAUSE = FIRST_MS + 200, FIRST_MS + 4 * IDLE_MS
PAUSED_SEEDS = range(4)


def test_a_paused_instance_is_waited_for(engine: Engine) -> None:
    """Its records are not late once it is resumed."""
    left = 0
    for seed in PAUSED_SEEDS:
        group = run(engine, seed, PAUSE)
        left += group.paused_with
        assert group.dropped[LATE] == 0
        assert not group.unread
        assert counted(group) == closed_sales(group)
    assert left > 0, "no instance was paused in front of records"


DEADLY_SEEDS = range(3)
DEADLY = 150


def test_a_record_that_kills_its_worker_hurts_only_itself(engine: Engine) -> None:
    """Though it waits among others that are held back, which a smaller batch reads again."""
    for seed in DEADLY_SEEDS:
        group = run(engine, seed, deadly=LONG.encode(DEADLY))
        letters = [one for one in group.written if one.topic == "dead"]
        assert [one.value for one in letters] == [LONG.encode(DEADLY)]
        assert group.dropped[LATE] == 0
        assert not group.unread
        assert closed_sales(group) - counted(group) in (0, 1)
        assert 0 < group.deaths < 40, "a task that moves is searched anew"


def test_without_the_minimum_records_are_dropped(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "least", _highest)
    assert any(run(engine, seed).dropped[LATE] for seed in LESS_SEEDS)


def _highest(inputs: list[Told]) -> int:
    return max((one.ms for one in inputs), default=-1)
