"""Which copies a query reads, who is named otherwise, and how far copies lag."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

import word_service
from everflow import KafkaStreams, Topology
from everflow.assignment.user_data import (
    AssignmentData,
    HostTasks,
    UserData,
    encode,
    encode_assignment,
)
from everflow.errors import RetriableError
from everflow.instance.client_state import ClientState
from everflow.instance.query.queries import (
    ENDS_AGE_MS,
    RETRY_MS,
    HostMap,
    KeyQueryMetadata,
    LagInfo,
    default_partitioner,
)
from everflow.kafka.group_channel import GroupSettings
from everflow.records import TaskId, TopicPartition
from everflow.serdes import SerdeError
from everflow.snapshots.query_errors import (
    InvalidStateStoreError,
    StaleStateError,
    StateElsewhereError,
    StateMovingError,
    StoreNotFoundError,
)
from unit.instance.query.query_stores import COUNTS, PARTITIONS, WINDOWS, Instance, by_first_letter
from unit.manual_clock import ManualClock
from word_service import serve


def tasks(active: set[int], standby: Collection[int] = ()) -> HostTasks:
    return HostTasks(*(frozenset(TaskId(0, one) for one in some) for some in (active, standby)))


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    """Active: partition 0 ("a"). A copy: partition 1 ("b"), at changelog position 2. Nothing of 2
    and 3."""
    made = Instance(tmp_path, end=2)
    made.put(0, COUNTS, {b"a": 1})
    made.put(1, COUNTS, {b"b": 5, b"bb": 6}, active=False)
    made.hosts = {
        "me:1": tasks({0}, {1}),
        "other:1": tasks({1, 2}, {0, 2}),
        "third:1": tasks(set(), {2}),
    }
    yield made
    made.close()


def test_only_active_tasks_are_read_by_default(instance: Instance) -> None:
    counts = instance.store("counts", partitioner=by_first_letter)
    assert list(counts.all()) == [("a", 1)]
    with pytest.raises(StateElsewhereError) as raised:
        counts.get("b")
    assert (raised.value.partition, raised.value.host) == (1, "other:1")
    assert (
        "Partition 1 of store 'counts' is on other:1: ask there. A copy of it is here: stale=True"
        in str(raised.value)
    )


def test_stale_reads_take_copies_too(instance: Instance) -> None:
    counts = instance.store("counts", stale=True, partitioner=by_first_letter)
    assert list(counts.all()) == [("a", 1), ("b", 5), ("bb", 6)]
    assert counts.get("b") == 5
    assert instance.asked == 0, "without a bound the brokers are not asked"


def test_an_active_task_is_read_rather_than_a_copy(instance: Instance) -> None:
    instance.show(1, COUNTS, instance.put(2, COUNTS, {b"b": 50}))
    assert instance.store("counts", stale=True, partitioner=by_first_letter).get("b") == 50


def test_one_partition(instance: Instance) -> None:
    assert list(instance.store("counts", 0).all()) == [("a", 1)]
    assert instance.store("counts", 0, partitioner=by_first_letter).get("b") is None
    for query in ("all", "approximate_num_entries"):
        with pytest.raises(StateElsewhereError, match=r"Partition 2.*other:1.*other:1.*third:1"):
            getattr(instance.store("counts", 2), query)()
    with pytest.raises(ValueError, match="partitions 0 to 3, not 4"):
        instance.store("counts", 4)


def test_the_kind_of_a_store_is_not_asked_for(instance: Instance) -> None:
    kind_known = (
        r"store\('counts'\) is a ReadOnlyKeyValueStore already; the second argument is a "
        r"partition, not 'window'"
    )
    with pytest.raises(TypeError, match=kind_known):
        instance.store("counts", "window")  # type: ignore[arg-type]


def test_a_lag_beyond_the_bound_is_named(instance: Instance) -> None:
    counts = instance.store("counts", stale=True, max_lag=3, partitioner=by_first_letter)
    instance.end = 5
    assert counts.get("b") == 5
    instance.end = 6
    assert counts.get("b") == 5, "the end is known for a while"
    instance.clock.advance(ENDS_AGE_MS + 1)
    with pytest.raises(StaleStateError, match=r"4 offsets.*max_lag=3.*other:1") as raised:
        counts.get("b")
    assert (raised.value.partition, raised.value.lag, raised.value.max_lag) == (1, 4, 3)
    with pytest.raises(StaleStateError):
        counts.all()
    assert counts.get("a") == 1, "an active task does not lag"
    assert instance.asked == 2
    with pytest.raises(ValueError, match="goes with stale=True"):
        instance.store("counts", max_lag=3)


def test_a_copy_that_lags_refuses_nothing_but_its_own_keys(instance: Instance) -> None:
    """It is looked into for a key of another partition; where a key is does not hang on it."""
    counts = instance.store("counts", stale=True, max_lag=3, partitioner=by_first_letter)
    instance.put(0, COUNTS, {b"cz": 9})  # belongs to partition 2
    instance.end = 1_000
    with pytest.raises(StateElsewhereError, match=r"Partition 2.*'counts'.*other:1") as raised:
        counts.get("c")
    assert raised.value.partition == 2
    assert counts.get("cz") == 9
    assert counts.get("ab") is None, "its own partition is here and up to date"
    with pytest.raises(StaleStateError):
        counts.get("b")


def test_while_it_drains_an_instance_answers_for_the_tasks_it_still_has(instance: Instance) -> None:
    counts = instance.store("counts", partitioner=by_first_letter)
    instance.state, instance.draining = ClientState.PENDING_SHUTDOWN, True
    assert counts.get("a") == 1
    instance.hosts = {"me:1": tasks(set()), "other:1": tasks({0, 1})}
    del instance.active[TaskId(0, 0)]  # handed over
    with pytest.raises(StateElsewhereError, match="other:1: ask there"):
        counts.get("a")
    for state, draining in (
        (ClientState.PENDING_SHUTDOWN, False),
        (ClientState.PENDING_ERROR, True),
    ):
        instance.state, instance.draining = state, draining
        with pytest.raises(InvalidStateStoreError, match=rf"{state.name}.*stores"):
            counts.get("a")


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"partition": "0"}, TypeError, "partition must be a whole number, not '0'"),
        ({"partition": 1.0}, TypeError, "partition must be a whole number, not 1.0"),
        ({"partition": True}, TypeError, "partition must be a whole number, not True"),
        ({"partition": -1}, ValueError, "partitions 0 to 3, not -1"),
        ({"stale": True, "max_lag": -1}, ValueError, "max_lag=-1: it counts offsets, from 0"),
        ({"stale": True, "max_lag": "x"}, TypeError, "max_lag must be a whole number, not 'x'"),
    ],
)
def test_options_that_cannot_be_are_refused_at_once(
    instance: Instance, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=re.escape(says)):
        instance.store("counts", **options)


def test_what_moves_is_to_be_asked_again(instance: Instance) -> None:
    instance.hosts = {"me:1": tasks({0, 1})}
    counts = instance.store("counts", partitioner=by_first_letter)
    with pytest.raises(StateMovingError, match=r"restored.*A"):
        counts.get("b")
    instance.hosts = {"other:1": tasks(set())}
    instance.state = ClientState.REBALANCING
    with pytest.raises(StateMovingError):
        counts.get("c")
    assert counts.get("a") == 1, "tasks that stay answer through a rebalance"


def test_an_owner_without_an_end_point_cannot_be_named(instance: Instance) -> None:
    instance.hosts = None
    with pytest.raises(StateElsewhereError, match=r"application\.server") as raised:
        instance.store("counts", partitioner=by_first_letter).get("c")
    assert raised.value.host is None


def test_an_instance_without_any_task_of_the_store(instance: Instance) -> None:
    instance.active.clear()
    counts = instance.store("counts", partitioner=by_first_letter)
    with pytest.raises(StateMovingError, match="Retry shortly"):
        counts.all()
    instance.copies.clear()
    with pytest.raises(InvalidStateStoreError, match="ask me:1, other:1, third:1"):
        counts.all()
    with pytest.raises(StateElsewhereError, match="is on other:1"):
        counts.get("c")
    instance.state = ClientState.REBALANCING
    with pytest.raises(StateMovingError):
        counts.range("a", "b")


def test_an_unknown_store_and_an_instance_that_does_not_run(instance: Instance) -> None:
    with pytest.raises(StoreNotFoundError, match=r"'nope'.*windows"):
        instance.store("nope")
    counts = instance.store("counts")
    instance.state = ClientState.NOT_RUNNING
    with pytest.raises(InvalidStateStoreError, match=r"NOT_RUNNING.*stores"):
        counts.get("a")
    with pytest.raises(InvalidStateStoreError, match="started"):
        KafkaStreams(Topology(()), application_id="app", bootstrap_servers="b:1").store("counts")
    starting = KafkaStreams(Topology(()), application_id="app", bootstrap_servers="b:1")
    starting._life.states.to(ClientState.REBALANCING)
    with pytest.raises(InvalidStateStoreError, match=r"starting.*RUNNING"):
        starting.store("counts")


def test_metadata_for_a_key(instance: Instance) -> None:
    assert instance.query_metadata_for_key("counts", "c", by_first_letter) == KeyQueryMetadata(
        "other:1", ("other:1", "third:1"), 2
    )
    assert instance.query_metadata_for_key("windows", "d", by_first_letter) == KeyQueryMetadata(
        None, (), 3
    )
    with pytest.raises(SerdeError, match=r"'windows'.*string"):
        instance.query_metadata_for_key("windows", {"key": "a", "start": 0})
    with pytest.raises(ValueError, match="The partitioner gave 9"):
        instance.query_metadata_for_key("counts", "c", lambda key, count: 9)


def test_metadata_says_a_copy_s_lag(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    instance.end = 9
    lags = {
        key: instance.query_metadata_for_key("counts", key, by_first_letter).lag for key in "abc"
    }
    assert lags == {"a": 0, "b": 7, "c": None}
    assert instance.asked == 1, "only where there is a copy that may be behind"

    def no_answer(partitions: object) -> dict[TopicPartition, int]:
        raise RetriableError("no broker")

    assert instance._queries is not None
    ports = replace(instance._queries.ports, ends=no_answer)
    monkeypatch.setattr(instance._queries, "ports", ports)
    instance.clock.advance(ENDS_AGE_MS + 1)
    found = instance.query_metadata_for_key("counts", "b", by_first_letter)
    assert (found.active_host, found.lag) == ("other:1", None)


def test_metadata_of_instances(instance: Instance) -> None:
    mine, other, third = instance.metadata_for_all_streams_clients()
    both = frozenset({"counts", "windows"})
    assert (mine.host, mine.store_names, mine.topic_partitions) == (
        "me:1",
        both,
        {TopicPartition("in", 0)},
    )
    assert (other.host, other.standby_topic_partitions) == (
        "other:1",
        {TopicPartition("in", 0), TopicPartition("in", 2)},
    )
    assert (third.host, third.store_names, third.standby_store_names) == ("third:1", set(), both)
    assert instance.streams_metadata_for_store("counts") == (mine, other, third)
    instance.hosts = {"idle:1": tasks(set())}
    assert instance.streams_metadata_for_store("counts") == ()
    instance.hosts = None
    assert instance.metadata_for_all_streams_clients() == ()


def test_lags_of_all_copies_here(instance: Instance) -> None:
    instance.end = 7
    instance.put(0, WINDOWS, {})
    instance.copies[TaskId(0, 0)] = instance.active[
        TaskId(0, 0)
    ]  # said twice while it changes its role: the active counts
    assert instance.all_local_store_partition_lags() == {
        "counts": {0: LagInfo(7, 7, 0), 1: LagInfo(2, 7, 5)},
        "windows": {0: LagInfo(7, 7, 0)},
    }
    assert instance.asked == 1


HOSTS = {
    "a:1": HostTasks(frozenset({TaskId(0, 0)}), frozenset({TaskId(0, 1)})),
    "b:1": HostTasks(frozenset({TaskId(0, 1)})),
}


GROUP = GroupSettings(bootstrap_servers="broker:1", group_id="app")


class Group:
    """The members of a group as the coordinator describes them."""

    def __init__(self) -> None:
        self.hosts = HOSTS
        self.asked = 0
        self.error: RetriableError | None = None

    def describe(self, settings: GroupSettings) -> Iterable[tuple[bytes, bytes]]:
        assert settings is GROUP
        self.asked += 1
        if self.error is not None:
            raise self.error
        return [
            (
                encode(UserData(process_id=host, endpoint=host)),
                encode_assignment(AssignmentData(active=tasks.active, standby=tasks.standby)),
            )
            for host, tasks in self.hosts.items()
        ]


def host_map(
    describe: Callable[[GroupSettings], Iterable[tuple[bytes, bytes]]],
    clock: ManualClock | None = None,
) -> HostMap:
    made = HostMap(clock or ManualClock(), describe)
    made.group = GROUP
    return made


@pytest.fixture
def group() -> Group:
    return Group()


def test_a_map_that_was_sent_is_not_read(group: Group) -> None:
    hosts = host_map(group.describe)
    assert hosts.hosts() is None
    hosts.replace(1, HOSTS)
    assert hosts.hosts() == HOSTS
    hosts.replace(2, {})
    assert hosts.hosts() == {}
    assert group.asked == 0


def test_a_map_that_was_left_out_is_read_once_per_generation(group: Group) -> None:
    hosts = host_map(group.describe)
    for generation in (1, 2):
        hosts.replace(generation, None)
        assert hosts.hosts() == hosts.hosts() == HOSTS
        assert group.asked == generation


def test_a_failure_is_not_known_for_a_moment(group: Group) -> None:
    clock = ManualClock()
    hosts = host_map(group.describe, clock)
    hosts.replace(1, None)
    group.error = RetriableError("no answer")
    assert hosts.hosts() is hosts.hosts() is None
    assert group.asked == 1
    group.error = None
    clock.advance(RETRY_MS)
    assert hosts.hosts() == HOSTS


def test_a_rebalance_during_the_reading_wins(group: Group) -> None:
    hosts: HostMap

    def overtaken(settings: GroupSettings) -> Iterable[tuple[bytes, bytes]]:
        described = group.describe(settings)
        hosts.replace(2, {"new:1": HostTasks()})
        return described

    hosts = host_map(overtaken)
    hosts.replace(1, None)
    assert hosts.hosts() == {"new:1": HostTasks()}


PAGE = Path(__file__).parents[4] / "docs" / "QUERIES.md"
KEYS = {f"key {i}": i for i in range(20)}


def ask(host: str, key: str, query: str = "") -> Any:
    with urlopen(f"http://{host}/counts/{key.replace(' ', '%20')}{query}", timeout=10) as answer:
        return json.loads(answer.read())


@pytest.fixture
def instances(tmp_path: Path) -> Iterator[dict[str, Instance]]:
    """Two, by end point; each has half of the partitions."""
    made: dict[str, Instance] = {}
    servers = []
    for number in range(2):
        instance = Instance(tmp_path / str(number))
        for partition in range(number, PARTITIONS, 2):
            mine = {
                k.encode(): v
                for k, v in KEYS.items()
                if default_partitioner(k.encode(), PARTITIONS) == partition
            }
            instance.put(partition, COUNTS, mine)
            instance.end = max(instance.end, len(mine))
        servers.append(serve(cast(Any, instance), "127.0.0.1", 0))
        made[f"127.0.0.1:{servers[-1].server_address[1]}"] = instance
    hosts = {host: HostTasks(frozenset(instance.active)) for host, instance in made.items()}
    for instance in made.values():
        instance.hosts = hosts
    yield made
    for server in servers:
        server.shutdown()
        server.server_close()
    for instance in made.values():
        instance.close()


def test_the_service_of_the_page_is_the_example() -> None:
    (code,) = re.findall(r"```python\n(def serve.*?)```", PAGE.read_text(), re.DOTALL)
    assert code in Path(word_service.__file__).read_text()


def test_any_instance_answers_for_every_key(instances: dict[str, Instance]) -> None:
    for host in instances:
        assert {key: ask(host, key) for key in KEYS} == KEYS
        assert ask(host, "never counted") is None


def test_while_tasks_move_a_copy_recent_enough_answers(instances: dict[str, Instance]) -> None:
    for instance in instances.values():
        instance.state, instance.hosts = ClientState.REBALANCING, {}
        instance.copies, instance.active = instance.active, {}
    first, second = instances
    key = next(key for key in KEYS if default_partitioner(key.encode(), PARTITIONS) in (0, 2))
    assert TaskId(0, default_partitioner(key.encode(), PARTITIONS)) in instances[first].copies
    assert ask(first, key) == KEYS[key]
    instances[first].end += 2_000
    instances[first].clock.advance(10_000)
    for host, reason in ((first, "more than max_lag=1000"), (second, "retry shortly")):
        with pytest.raises(HTTPError) as raised:
            ask(host, key)
        assert raised.value.code == 503
        assert reason in raised.value.read().decode()


def test_with_stale_a_copy_answers_where_the_owner_is_gone(instances: dict[str, Instance]) -> None:
    first = next(iter(instances))
    here = instances[first]
    here.copies, here.active = here.active, {}
    nobody = "127.0.0.1:1"
    here.hosts = {nobody: HostTasks(frozenset(here.copies))}
    key = next(
        key
        for key in KEYS
        if TaskId(0, default_partitioner(key.encode(), PARTITIONS)) in here.copies
    )
    with pytest.raises(URLError) as gone:
        ask(first, key)
    assert not isinstance(gone.value, HTTPError), "sent to a silent owner"
    assert ask(first, key, "?stale") == KEYS[key]
