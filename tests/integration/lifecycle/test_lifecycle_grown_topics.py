"""Inputs that get more partitions under state on a broker (note 067): a multiple is read by the
tasks that have the state; any other number is refused by who runs and by who starts."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from everflow import JoinWindows, KafkaStreams, StreamsBuilder, TimeWindows, Topology, serdes
from everflow.cli import app as commands
from everflow.columns.key_partitions import java_partitions
from everflow.errors import FatalError, InternalTopicError
from everflow.instance.client_state import ClientState
from everflow.instance.instance import Extension
from everflow.instance.topics import internal_topics
from everflow.records import TaskId, TopicPartition
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import (
    CAUGHT_UP_S,
    Application,
    Cluster,
    Record,
    text,
    until_failed,
)

pytestmark = [pytest.mark.broker, pytest.mark.spark]

TEXT = serdes.string()
KEYS = [f"key-{number}" for number in range(40)]
WINDOW_MS, APART_MS = 100, 15
TAKEN_UP_S = 180.0


@pytest.fixture(autouse=True)
def watched_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internal_topics, "PERIOD_MS", 200.0)


def counted_and_joined(left: str, right: str, pairs: str) -> Topology:
    """Nothing is late: which record comes first makes no difference."""
    builder = StreamsBuilder()
    stream = builder.stream(left, key=TEXT, value=TEXT)
    other = builder.stream(right, key=TEXT, value=TEXT)
    windows = TimeWindows.of_size_and_grace(f"{WINDOW_MS} ms", "1 day")
    stream.group_by_key().windowed_by(windows).count(store="n")
    stream.join(
        other,
        lambda one, another: f"{one} {another}",
        windows=JoinWindows.of_time_difference_and_grace(f"{APART_MS} ms", "1 day"),
        returns="string",
        store="pairs",
    ).to(pairs)
    return builder.build()


def spread(records: Sequence[Record], partitions: Callable[[int], int]) -> Iterator[Record]:
    """Each where its producer puts it; ``partitions``: how many the producer of a record knows."""
    for number, record in enumerate(records):
        keys = pa.array([record.key], pa.binary())
        (place,) = java_partitions(keys, partitions(number)).tolist()
        yield record._replace(partition=place)


def of_round(side: str, turn: int) -> list[Record]:
    """A record of each key; times go on from round to round."""
    return [text(key, f"{side}{turn}", 1_000 + 10 * turn + n % 7) for n, key in enumerate(KEYS)]


def model(
    lefts: Sequence[Record], rights: Sequence[Record]
) -> tuple[dict[tuple[str, int], int], Counter[tuple[bytes | None, str]]]:
    """What is counted by key and window, and the pairs."""
    counts = Counter(
        ((one.key or b"").decode(), one.timestamp // WINDOW_MS * WINDOW_MS) for one in lefts
    )
    pairs = Counter(
        (one.key, f"{(one.value or b'').decode()} {(other.value or b'').decode()}")
        for one in lefts
        for other in rights
        if one.key == other.key and abs(one.timestamp - other.timestamp) <= APART_MS
    )
    return dict(counts), pairs


def incarnations(streams: KafkaStreams) -> dict[TaskId, str]:
    instance = streams._life.instance
    assert instance is not None
    return {task.id: task.incarnation for task in instance.running_tasks()}


def read_by(streams: KafkaStreams) -> set[TopicPartition]:
    instance = streams._life.instance
    assert instance is not None
    return {tp for task in instance.running_tasks() for tp in task.inputs}


def stored(streams: KafkaStreams) -> dict[tuple[str, int], int]:
    """The counts of the tasks that run here, each key's in the store of its own task."""
    found: dict[tuple[str, int], int] = {}
    for partition in streams.store("n").partitions:
        for window, count in streams.store("n", partition=partition).all():
            keys = pa.array([window.key.encode()], pa.binary())
            assert java_partitions(keys, 4).tolist() == [partition]
            found[window.key, window.start] = count
    return found


@dataclass
class Case:
    """The program over its topics, and the records that were written."""

    app: Application
    cluster: Cluster
    lefts: list[Record] = field(default_factory=list)
    rights: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.left, self.right = self.cluster.topic("left", 4), self.cluster.topic("right", 4)
        self.out = self.cluster.topic("pairs", 1)
        self.program = counted_and_joined(self.left, self.right, self.out)

    def write(self, knows: Callable[[int], int], others: int = 4) -> None:
        """One round. ``knows``: how many partitions of ``left`` the producer of a record knows."""
        turn = len(self.lefts) // len(KEYS)
        mine, theirs = of_round("l", turn), of_round("r", turn)
        self.cluster.write(self.left, spread(mine, knows))
        self.cluster.write(self.right, spread(theirs, lambda _: others))
        self.lefts.extend(mine)
        self.rights.extend(theirs)

    def require_right(self, *running: KafkaStreams) -> None:
        self.app.until_processed(None, self.left, self.right)
        for streams in running:
            self.app.until_processed(streams, self.left, self.right)
        counts, pairs = model(self.lefts, self.rights)
        found: dict[tuple[str, int], int] = {}
        for streams in running:
            found |= stored(streams)
        assert found == counts
        read = self.cluster.read(self.out)
        assert Counter((one.key, (one.value or b"").decode()) for one in read) == pairs


def either(number: int) -> int:
    """Some producers know the new partitions."""
    return 8 if number % 2 else 4


@pytest.mark.timeout(600)
def test_a_window_and_a_join_go_on_exactly_once_while_an_input_doubles(
    app: Application, cluster: Cluster, tmp_path: Path
) -> None:
    case = Case(app, cluster)
    left, right = case.left, case.right
    with app.running(case.program, num_stream_threads=2) as streams:
        case.write(lambda _: 4)
        app.until_processed(streams, left, right)
        before = incarnations(streams)
        assert sorted(before) == [TaskId(0, number) for number in range(4)]
        cluster.grow(left, 8)
        case.write(either)
        wait_until(lambda: len(read_by(streams)) == 8 + 4, TAKEN_UP_S, "the new partitions")
        for _ in range(2):
            case.write(either)
        case.require_right(streams)
        assert incarnations(streams) == before, "no task was recovered for it"
        assert streams.state is ClientState.RUNNING
        assert len(cluster.committed(app.id, left)) == 8
    cluster.grow(right, 12)
    for state in (app.state, tmp_path / "anew"):
        with app.running(case.program, state_dir=str(state)) as streams:
            case.write(lambda _: 8, 12)
            case.require_right(streams)
            (key, start), count = next(iter(model(case.lefts, [])[0].items()))
            assert streams.store("n").fetch_window(key, start) == count
            assert sorted(incarnations(streams)) == sorted(before)
            assert len(read_by(streams)) == 8 + 12
    ends = cluster.ends(f"{app.id}-n-changelog")
    assert len(ends) == 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_instances_agree_of_which_one_notices_later(
    app: Application, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task goes on where it is; the late one reads the new partitions once it knows them. A
    standby takes over a task with all its partitions."""
    case = Case(app, cluster)
    late: list[object] = []
    check = Extension.check
    monkeypatch.setattr(
        Extension, "check", lambda self: None if self.instance in late else check(self)
    )
    with ExitStack() as held:

        def started(number: int) -> KafkaStreams:
            running = app.running(
                case.program,
                state_dir=str(app.folder / f"state-{number}"),
                num_stream_threads=2,
                num_standby_replicas=1,
            )
            return held.enter_context(running)

        second, first = started(1), started(0)
        case.write(lambda _: 4)
        both = [first, second]
        wait_until(
            lambda: [len(incarnations(one)) for one in both] == [2, 2], TAKEN_UP_S, "equal shares"
        )
        before = [incarnations(one) for one in both]
        late.append(second._life.instance)
        cluster.grow(case.left, 8)
        wait_until(lambda: len(read_by(first)) == 2 * 3, TAKEN_UP_S, "the first to notice")
        case.write(either)
        app.until_processed(None, case.right)
        assert len(read_by(second)) == 2 * 2
        late.clear()
        wait_until(lambda: len(read_by(second)) == 2 * 3, TAKEN_UP_S, "the second to notice")
        case.write(either)
        case.require_right(*both)
        assert [incarnations(one) for one in both] == before, "no task was recovered"
        assert second.close(60.0)
        wait_until(lambda: len(read_by(first)) == 4 * 3, TAKEN_UP_S, "the takeover")
        case.write(either)
        case.require_right(first)


PROGRAM = """
from everflow import StreamsBuilder, serdes
builder = StreamsBuilder()
words = builder.stream({source!r}, key=serdes.string(), value=serdes.string())
words.group_by_key().count(store="counts").to_stream().to({output!r})
topology = builder.build()
"""


@pytest.mark.timeout(300)
def test_another_number_is_refused_by_who_runs_and_by_who_starts(
    app: Application, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(app.folder)
    source, output = cluster.topic("in", 4), cluster.topic("out", 1)
    (app.folder / "program.py").write_text(PROGRAM.format(source=source, output=output))
    names: dict[str, Any] = {}
    exec((app.folder / "program.py").read_text(), names)

    def check() -> tuple[int, list[dict[str, Any]]]:
        named = ["--application-id", app.id, "--output", "json"]
        asked = ["check", "program.py:topology", *named]
        result = CliRunner().invoke(
            commands.app, [*asked, "--bootstrap-servers", cluster.bootstrap]
        )
        changes = json.loads(result.stdout)["changes"]
        grave = [one for one in changes if one["effect"] in ("migration", "reset")]
        return result.exit_code, grave

    streams = app.instance(names["topology"])
    streams.start()
    try:
        cluster.write(source, spread(of_round("v", 0), lambda _: 4))
        app.until_processed(streams, source)
        assert check() == (0, [])
        cluster.grow(source, 6)
        error = until_failed(streams, CAUGHT_UP_S)
    finally:
        streams.close(60.0)
    assert isinstance(error, FatalError)
    what_follows = (source, "6", "4", "partitions=6", "everflow migrate")
    assert all(word in str(error) for word in what_follows)
    code, (change,) = check()
    assert (code, change["kind"], change["name"]) == (1, "partitions", source)
    assert (change["before"], change["after"]) == ("4", "6")
    with pytest.raises(InternalTopicError) as refused:
        app.instance(names["topology"]).start()
    assert all(word in str(refused.value) for word in what_follows)
    assert all(word in change["reason"] for word in ("partitions=6", "everflow migrate"))
    cluster.grow(source, 8)
    assert check() == (0, [])
    with app.running(names["topology"]) as streams:
        cluster.write(source, spread(of_round("v", 1), lambda _: 8))
        app.until_processed(streams, source)
        assert dict(streams.store("counts").all()) == dict.fromkeys(KEYS, 2)
