"""Which copies a query reads, who is named otherwise, and how far copies lag."""

import json
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pytest

import word_service
from everflow import KafkaStreams, Topology, Windowed, serdes
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
from everflow.instance.query.store_query import ReadOnlyStore, StoreReader
from everflow.kafka.group_channel import GroupSettings
from everflow.operators.table import TableSpec
from everflow.records import TaskId, TopicPartition
from everflow.serdes import SerdeError
from everflow.snapshots.query_errors import (
    InvalidStateStoreError,
    StaleStateError,
    StateElsewhereError,
    StateMovingError,
    StoreKindError,
    StoreNotFoundError,
)
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec
from everflow.topology.graph import EdgeType, MergeNode, SinkNode, SourceNode, StatefulNode
from everflow.topology.partitioners import topics_into_stores
from unit.instance.query.query_stores import (
    COUNTS,
    PARTITIONS,
    WINDOWS,
    Instance,
    by_first_letter,
    windows,
)
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
    assert re.match("Partition 1 .*'counts' .*other:1: .*: stale=True", str(raised.value))


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
        ({"partition": "0"}, TypeError, "partition .* number, not '0'"),
        ({"partition": 1.0}, TypeError, "partition .* number, not 1.0"),
        ({"partition": True}, TypeError, "partition .* number, not True"),
        ({"partition": -1}, ValueError, "partitions 0 to 3, not -1"),
        ({"stale": True, "max_lag": -1}, ValueError, "max_lag=-1: it counts offsets, from 0"),
        ({"stale": True, "max_lag": "x"}, TypeError, "max_lag .* number, not 'x'"),
    ],
)
def test_options_that_cannot_be_are_refused_at_once(
    instance: Instance, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
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


# Queries of real stores.


@pytest.fixture
def asked_instance(tmp_path: Path) -> Iterator[Instance]:
    made = Instance(tmp_path)
    yield made
    made.close()


def store(asked_instance: Instance, name: str, page: int | None = None, **options: Any) -> Any:
    """A store, reading pages of so many entries."""
    found = asked_instance.store(name, partitioner=by_first_letter, **options)
    if page is not None:
        found._reader.page_entries = page
    return found


def fill(asked_instance: Instance) -> None:
    asked_instance.put(0, COUNTS, {b"a": 1, b"a\xc3\xa9": 2, b"aa": 3, b"ab": 4})
    asked_instance.put(1, COUNTS, {b"b": 5, b"ba": 6})


@pytest.mark.parametrize("page", [1, 2, 3, 1000])
def test_keys_ranges_and_prefixes(asked_instance: Instance, page: int) -> None:
    fill(asked_instance)
    counts = store(asked_instance, "counts", page)
    everything = [("a", 1), ("aa", 3), ("ab", 4), ("aé", 2), ("b", 5), ("ba", 6)]
    assert list(counts.all()) == everything
    assert list(counts.reverse_all()) == [*everything[3::-1], *everything[:3:-1]]
    assert list(counts.range("aa", "b")) == everything[1:5]
    assert list(counts.reverse_range("aa", "ab")) == [("ab", 4), ("aa", 3)]
    assert list(counts.range(None, "a")) == [("a", 1)]
    assert list(counts.range("ab", None)) == everything[2:]
    assert list(counts.prefix_scan("a")) == everything[:4]
    assert list(counts.prefix_scan(b"a\xc3")) == [("aé", 2)]
    assert [counts.get(key) for key in ("a", "ba", "ac")] == [1, 6, None]
    assert counts.approximate_num_entries() == 6
    assert counts.partitions == (0, 1)


def test_a_large_value_ends_a_page(
    asked_instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(asked_instance)
    sizes = []
    original = StoreReader._page

    def counted(self: StoreReader, *arguments: Any) -> Any:
        page, more = original(self, *arguments)
        sizes.append(len(page))
        return page, more

    monkeypatch.setattr(StoreReader, "_page", counted)
    reader = asked_instance.store("counts")._reader
    reader.page_bytes = 20
    assert len(list(reader.entries(0, None, None))) == 4
    assert sizes == [2, 2]


def test_a_key_written_by_another_partitioner_is_found_here(asked_instance: Instance) -> None:
    fill(asked_instance)
    asked_instance.put(0, COUNTS, {b"bz": 7})  # belongs to partition 1
    assert store(asked_instance, "counts").get("bz") == 7


@pytest.mark.parametrize(
    ("query", "arguments", "says"),
    [
        ("fetch", ("a", "0", 5), r"time_from \(ms\) .* number, not '0'"),
        ("backward_fetch", ("a", 0, None), r"time_to \(ms\) .* number, not None"),
        ("fetch_all", (0, 1.5), r"time_to \(ms\) .* number, not 1.5"),
        ("backward_fetch_all", (None, 0), r"time_from \(ms\)"),
        ("fetch_range", ("a", "b", "x", 0), r"time_from \(ms\)"),
        ("backward_fetch_range", (None, None, 0, "x"), r"time_to \(ms\)"),
        ("fetch_window", ("a", "0"), r"start \(ms\) .* number, not '0'"),
    ],
)
def test_times_of_another_type_are_named_at_the_call(
    asked_instance: Instance, query: str, arguments: tuple[Any, ...], says: str
) -> None:
    asked_instance.put(0, WINDOWS, windows({("a", 0): 1}))
    with pytest.raises(TypeError, match=says):
        getattr(store(asked_instance, "windows"), query)(*arguments)


def test_times_may_be_numbers_of_numpy(asked_instance: Instance) -> None:
    asked_instance.put(0, WINDOWS, windows({("a", 0): 1}))
    assert list(store(asked_instance, "windows").fetch("a", np.int64(0), np.int64(5))) == [
        (Windowed("a", 0, 1000), 1)
    ]


def test_a_query_of_another_kind_says_what_there_is(asked_instance: Instance) -> None:
    fill(asked_instance)
    with pytest.raises(StoreKindError, match=r"key_value store.*prefix_scan"):
        asked_instance.store("counts").fetch("a", 0, 1)
    with pytest.raises(StoreKindError, match="window"):
        asked_instance.store("windows").get("a")
    with pytest.raises(StoreKindError, match=r"prefixScan.*prefix_scan"):
        asked_instance.store("counts").prefixScan("a")
    assert not hasattr(asked_instance.store("counts"), "fetch")


def test_a_key_of_another_type_names_store_and_type(asked_instance: Instance) -> None:
    fill(asked_instance)
    with pytest.raises(SerdeError, match=r"'counts'.*expected.*5"):
        asked_instance.store("counts").get(5)
    with pytest.raises(SerdeError, match="never null"):
        asked_instance.store("counts").get(None)


def test_of_a_wrong_key_and_a_wrong_time_each_is_named(asked_instance: Instance) -> None:
    """Of both, the one that a query looks at first."""
    asked_instance.put(0, WINDOWS, windows({("a", 0): 1}))
    found = store(asked_instance, "windows")
    for key, time, error in ((7, 0, SerdeError), ("a", "x", TypeError), (7, "x", TypeError)):
        with pytest.raises(error, match=r"'windows'.*7|time_from.*'x'"):
            found.fetch(key, time, 5)
    with pytest.raises(SerdeError, match=r"'windows'.*7"):
        found.fetch_window(7, "x")


def test_a_store_that_is_gone_while_its_task_is_said_to_run_is_moving(
    asked_instance: Instance,
) -> None:
    path = asked_instance.put(0, COUNTS, {b"a": 1})
    LmdbStore.close_at(path)
    shutil.rmtree(path)
    with pytest.raises(StateMovingError, match="Partition 0"):
        store(asked_instance, "counts").get("a")


def test_a_store_closed_between_two_reads_is_opened_again(asked_instance: Instance) -> None:
    path = asked_instance.put(0, COUNTS, {b"a": 1})
    counts = store(asked_instance, "counts")
    assert counts.get("a") == 1
    LmdbStore.close_at(path)
    assert counts.get("a") == 1


def test_a_partition_that_moves_away_ends_the_iteration_with_an_error(
    asked_instance: Instance,
) -> None:
    fill(asked_instance)
    entries = store(asked_instance, "counts", 1).all()
    assert next(entries) == ("a", 1)
    del asked_instance.active[TaskId(0, 0)]
    asked_instance.state = ClientState.REBALANCING
    with pytest.raises(StateMovingError, match=r"Partition 0.*'counts'"):
        list(entries)


def test_no_read_transaction_is_open_between_two_entries(asked_instance: Instance) -> None:
    path = asked_instance.put(0, COUNTS, {b"a": 1, b"b": 2, b"c": 3})
    entries = store(asked_instance, "counts", 2).all()
    next(entries)
    opened = LmdbStore.open(path)
    assert opened._env._readers == 0
    opened.close()  # would wait for a reader
    assert [key for key, _ in entries] == ["b", "c"]


def test_a_store_is_kept_over_everything_that_happens_to_its_tasks(
    asked_instance: Instance,
) -> None:
    counts: ReadOnlyStore = store(asked_instance, "counts")
    assert counts.partitions == ()
    fill(asked_instance)
    assert counts.partitions == (0, 1)
    assert repr(counts) == "<ReadOnlyKeyValueStore counts>"


@pytest.mark.parametrize(
    ("key", "hashed"),
    [  # Kafka's own test vectors of Utils.murmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_are_partitioned_as_java_does(key: bytes, hashed: int) -> None:
    for partitions in (1, 7, 1000):
        assert default_partitioner(key, partitions) == (hashed & 0x7FFFFFFF) % partitions


def test_a_store_holds_the_keys_of_the_topics_that_reach_it() -> None:
    """Not of its whole sub-topology, which may have a wider topic that its keys never meet."""
    edge, data = EdgeType(pa.binary(), pa.binary()), serdes.bytes_()
    topology = Topology(
        (
            SourceNode("S1", (), edge, ("narrow", "narrow-too"), data, data),
            SourceNode("S2", (), edge, ("wide",), data, data),
            StatefulNode(
                "counts",
                ("S1",),
                edge,
                "AGGREGATE",
                TableSpec("counts", data, data),
                (StoreSpec(name="counts", kind="key_value", key_serde=data, value_serde=data),),
            ),
            MergeNode("M", ("counts", "S2"), edge),
            SinkNode("R", ("M",), edge, "by-value-repartition", data, data, "repartition"),
            SourceNode("S3", (), edge, ("by-value-repartition",), data, data, "repartition"),
            StatefulNode(
                "again",
                ("S3",),
                edge,
                "AGGREGATE",
                TableSpec("counts", data, data),
                (StoreSpec(name="by-value", kind="key_value", key_serde=data, value_serde=data),),
            ),
        )
    )
    assert topics_into_stores(topology, "app") == {
        "counts": {"narrow", "narrow-too"},
        "by-value": {"app-by-value-repartition"},
    }
