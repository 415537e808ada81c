"""Calls side by side (note 070): which begin, how many at a time, time-outs and retries, in virtual
time; what an operator makes of them; and threads of plain functions."""

import asyncio
import selectors
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.config import EXACTLY_ONCE_V2
from everflow.errors import RetriableError
from everflow.handlers import is_outage
from everflow.instance.commit_gate import GateBackend, GateBook, answer
from everflow.records import EdgeBatch, MemberMetadata, TopicPartition
from everflow.testing.waiting import wait_until
from everflow.topology.batches import KnownResults
from everflow.topology.graph import CallLimits, EdgeType, FunctionNode
from everflow.worker.calls import (
    AT_LEISURE,
    Called,
    Calls,
    CallsBatch,
    EventLoop,
    MakesCalls,
    Named,
    close_event_loop,
)
from everflow.worker.failures import CallsEnded, Failures, MoreRecords, RecordFailure
from everflow.worker.task_step import run_function
from unit.builders import edge_batch, source

# --- in virtual time ------------------------------------------------------------------------------


class VirtualSelector(selectors.SelectSelector):
    """Moves its loop's clock in the place of waiting."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.now_s += timeout or 0.0
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = VirtualSelector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now_s


def limits(
    concurrency: int, timeout_ms: int = 1_000, retries: int = 0, awaited: bool = True
) -> Any:
    return CallLimits(concurrency, timeout_ms, retries, awaited)


async def pause(ms: float) -> None:
    """Of a service that takes its time."""
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(ms / 1000, passed.set)
    await passed.wait()


class Service:
    """Notes when each call began, and how many were under way at a time; ``ms`` and ``fails``: of
    a row and its attempt, from 0."""

    def __init__(
        self,
        ms: Callable[[int, int], float],
        fails: Callable[[int, int], BaseException | None] = lambda row, attempt: None,
    ) -> None:
        self.ms, self.fails = ms, fails
        self.began: list[tuple[int, float]] = []
        self.cancelled: list[int] = []
        self.now = self.most = 0

    async def answer(self, row: int) -> int:
        attempt = sum(1 for one, _ in self.began if one == row)
        self.began.append((row, round(asyncio.get_running_loop().time() * 1000)))
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await pause(self.ms(row, attempt))
            error = self.fails(row, attempt)
            if error is not None:
                raise error
            return row * 10
        except asyncio.CancelledError:
            self.cancelled.append(row)
            raise
        finally:
            self.now -= 1


def run(
    service: Service,
    rows: int,
    asked: CallLimits,
    during: Callable[[Calls], Awaitable[None]] | None = None,
    **how: Any,
) -> tuple[Called, float]:
    """What came of it, and how many ms it took."""
    calls = Calls(
        answer=lambda row, call: service.answer(row), rows=range(rows), limits=asked, **how
    )

    async def whole() -> Called:
        beside = None if during is None else asyncio.ensure_future(during(calls))
        found = await calls.run()
        if beside is not None:
            await beside
        return found

    loop = VirtualLoop()
    try:
        found = loop.run_until_complete(whole())
        assert not asyncio.all_tasks(loop)
        return found, loop.time() * 1000
    finally:
        loop.close()


@given(rows=st.integers(0, 40), concurrency=st.integers(1, 50), ms=st.integers(1, 99))
def test_so_many_calls_are_under_way_and_each_row_is_called_once(
    rows: int, concurrency: int, ms: int
) -> None:
    service = Service(lambda row, attempt: ms)
    found, took_ms = run(service, rows, limits(concurrency))
    assert found.results == {row: row * 10 for row in range(rows)}
    assert sorted(row for row, _ in service.began) == list(range(rows))
    assert service.most == min(rows, concurrency)
    assert took_ms == pytest.approx(-(-rows // concurrency) * ms, abs=1e-3)


def test_a_slow_call_holds_up_its_own_place_alone() -> None:
    service = Service(lambda row, attempt: 900 if row == 0 else 10)
    found, took_ms = run(service, 91, limits(2))
    assert len(found.results) == 91
    assert took_ms == pytest.approx(900, abs=1e-3)


def test_a_call_that_hangs_is_cancelled_and_fails_as_an_outage() -> None:
    service = Service(lambda row, attempt: 10_000 if row == 1 else 50)
    found, took_ms = run(service, 3, limits(3, timeout_ms=200))
    assert found.results == {0: 0, 2: 20}
    assert service.cancelled == [1]
    assert isinstance(found.failed[1], TimeoutError)
    assert is_outage(found.failed[1])
    assert took_ms == pytest.approx(200, abs=1e-3)


def test_what_may_pass_is_tried_again_with_growing_pauses_and_all_else_at_once() -> None:
    def fails(row: int, attempt: int) -> BaseException | None:
        errors: dict[int, BaseException] = {
            0: ConnectionError(),
            1: ValueError(),
            2: ConnectionError(),
        }
        return errors[row] if row == 2 or attempt < 2 else None

    service = Service(lambda row, attempt: 10, fails)
    found, _ = run(service, 3, limits(3, retries=3))
    assert found.results == {0: 0}
    assert {row: type(error) for row, error in found.failed.items()} == {
        1: ValueError,
        2: ConnectionError,
    }
    assert [ms for row, ms in service.began if row == 2] == [0, 110, 320, 730]
    assert [row for row, _ in service.began].count(1) == 1


def test_a_time_out_counts_for_each_attempt() -> None:
    service = Service(lambda row, attempt: 1_000 if attempt == 0 else 10)
    found, took_ms = run(service, 1, limits(1, timeout_ms=100, retries=1))
    assert found.results == {0: 0}
    assert took_ms == pytest.approx(100 + 100 + 10, abs=1e-3)


def test_calls_begin_for_so_long_and_what_has_begun_ends() -> None:
    service = Service(lambda row, attempt: 60)
    found, took_ms = run(service, 100, limits(2), begin_ms=100)
    assert sorted(found.results) == [0, 1, 2, 3]
    assert took_ms == pytest.approx(120, abs=1e-3)


def test_the_first_calls_begin_however_short_the_time() -> None:
    found, _ = run(Service(lambda row, attempt: 60), 9, limits(3), begin_ms=0.0)
    assert sorted(found.results) == [0, 1, 2]


def test_behind_the_first_failure_none_begins_unless_all_are_wanted() -> None:
    service = Service(lambda row, attempt: 10, lambda row, attempt: ValueError())
    found, _ = run(service, 50, limits(2), every=False)
    assert sorted(found.failed) == [0, 1]
    found, _ = run(
        Service(lambda row, attempt: 10, lambda row, attempt: ValueError()), 50, limits(2)
    )
    assert len(found.failed) == 50


def test_calls_that_are_ended_are_cancelled_and_count_as_not_called() -> None:
    service = Service(
        lambda row, attempt: 10 if row < 2 else 500,
        lambda row, attempt: ConnectionError() if row == 1 else None,
    )

    async def end(calls: Calls) -> None:
        await pause(50)
        calls.end()

    found, took_ms = run(service, 50, limits(4, retries=9), during=end)
    assert found == Called({0: 0}, {})  # row 1 paused before it was tried again
    assert sorted(service.cancelled) == [2, 3, 4]
    assert took_ms == pytest.approx(50, abs=1e-3)


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), KeyError("x")])
def test_whatever_a_function_raises_is_its_records_failure(error: BaseException) -> None:
    service = Service(lambda row, attempt: 1, lambda row, attempt: error if row == 1 else None)
    found, _ = run(service, 3, limits(1))
    assert found.results == {0: 0, 2: 20}
    assert found.failed == {1: error}


def test_the_longest_call_has_all_attempts_and_pauses() -> None:
    assert limits(1, 1_000, 3).longest_ms == 4_000 + 100 + 200 + 400


# --- calls that outlive their batch ---------------------------------------------------------------


LOG = TopicPartition("in", 0)


def named(offsets: list[int], logs: list[int] | None = None) -> Named:
    """Rows with these offsets, of these partitions."""
    logs = logs or [0] * len(offsets)
    places = [
        (TopicPartition("in", log), offset, 0) for log, offset in zip(logs, offsets, strict=True)
    ]
    return Named(1, places, offsets, frozenset(logs.index(log) for log in set(logs)))


class Batches:
    """Batches of one operator in virtual time; rows are asked about by their offsets."""

    def __init__(self, service: Service, asked: CallLimits) -> None:
        self.service, self.asked = service, asked
        self.kept: dict[Any, Any] = {}
        self.calls: Calls | None = None

    async def of(
        self, rows: Named, during: Callable[[Calls], None] | None = None, **how: Any
    ) -> Called:
        """``during``: called 20 ms after its begin."""
        offsets = [offset for _, offset, _ in rows.places]
        calls = Calls(
            answer=lambda row, call: self.service.answer(offsets[row]),
            rows=range(len(offsets)),
            limits=self.asked,
            named=rows,
            kept=self.kept,
            **how,
        )
        if during is not None:
            asyncio.get_running_loop().call_later(0.02, during, calls)
        return await calls.run()

    def run(self, whole: Callable[[Any], Any]) -> None:
        loop = VirtualLoop()
        try:
            loop.run_until_complete(whole(self))
            assert not asyncio.all_tasks(loop)
        finally:
            loop.close()


def now_ms() -> float:
    return round(asyncio.get_running_loop().time() * 1000)


def test_a_batch_ends_with_its_first_answers_and_the_next_one_takes_the_others() -> None:
    service = Service(lambda row, attempt: {0: 50, 1: 52, 2: 90, 3: 50}[row])

    async def whole(batches: Batches) -> None:
        assert await batches.of(named([0, 1, 2])) == Called({0: 0, 1: 10}, {})
        assert now_ms() == 55
        assert await batches.of(named([2, 3])) == Called({0: 20}, {})
        assert now_ms() == 90  # none under way began with it
        assert await batches.of(named([3])) == Called({0: 30}, {})
        assert now_ms() == 105

    Batches(service, limits(4)).run(whole)
    assert service.began == [(0, 0), (1, 0), (2, 0), (3, 55)]


def test_a_batch_waits_for_calls_that_began_with_the_one_that_is_over() -> None:
    """No longer than they take, and no longer than 5 ms."""
    service = Service(lambda row, attempt: {0: 50, 1: 52, 2: 50, 3: 90, 4: 10}[row])

    async def whole(batches: Batches) -> None:
        assert await batches.of(named([0, 1])) == Called({0: 0, 1: 10}, {})
        assert now_ms() == 52
        assert await batches.of(named([2, 3])) == Called({0: 20}, {})
        assert now_ms() == 107
        assert await batches.of(named([3, 4], [0, 1])) == Called({1: 40}, {})
        assert now_ms() == 117
        assert await batches.of(named([3])) == Called({0: 30}, {})

    Batches(service, limits(4)).run(whole)


def test_calls_of_records_that_come_meanwhile_begin_at_once() -> None:
    service = Service(lambda row, attempt: 50)

    async def whole(batches: Batches) -> None:
        found = await batches.of(named([0]), during=Calls.interrupt)
        assert (found, now_ms()) == (Called({}, {}, more=True), 20)
        found = await batches.of(named([0, 1]), during=Calls.interrupt)
        assert (found, now_ms()) == (Called({}, {}, more=True), 40)
        assert await batches.of(named([0, 1, 2])) == Called({0: 0}, {})
        # what can be committed is not held up by what comes
        found = await batches.of(named([1, 2])._replace(ready=True), during=Calls.interrupt)
        assert (found, now_ms()) == (Called({}, {}), 50)
        assert await batches.of(named([1, 2])) == Called({0: 10}, {})
        assert await batches.of(named([2])) == Called({0: 20}, {})

    Batches(service, limits(4)).run(whole)
    assert service.began == [(0, 0), (1, 20), (2, 40)]


def test_a_batch_goes_on_while_calls_wait_for_a_place() -> None:
    service = Service(lambda row, attempt: 10)

    async def whole(batches: Batches) -> None:
        found = await batches.of(named(list(range(10))))
        assert sorted(found.results) == list(range(8))
        assert now_ms() == 40  # when the last two began
        assert sorted((await batches.of(named([8, 9, 10]))).results) == [0, 1]
        assert await batches.of(named([10])) == Called({0: 100}, {})

    Batches(service, limits(2)).run(whole)
    assert service.most == 2


def test_a_failure_of_a_call_that_outlives_its_batch_is_its_records() -> None:
    service = Service(
        lambda row, attempt: 50 + 20 * row, lambda row, attempt: KeyError() if row == 1 else None
    )

    async def whole(batches: Batches) -> None:
        assert await batches.of(named([0, 1])) == Called({0: 0}, {})
        found = await batches.of(named([1]))
        assert [type(found.failed[0]), found.results] == [KeyError, {}]

    Batches(service, limits(4)).run(whole)


def test_what_stands_in_front_may_make_another_value_of_a_record() -> None:
    service = Service(lambda row, attempt: 50 if row == 0 else 200)

    async def whole(batches: Batches) -> None:
        await batches.of(named([0, 1]))
        other = named([1])._replace(seen=["other"])
        assert await batches.of(other) == Called({0: 10}, {})

    Batches(service, limits(4)).run(whole)
    assert service.cancelled == [1]
    assert service.began == [(0, 0), (1, 0), (1, 55)]


def test_an_ended_batch_leaves_no_call_to_the_next_one() -> None:
    service = Service(lambda row, attempt: 15 if row == 0 else 100)

    async def whole(batches: Batches) -> None:
        await batches.of(named([0, 1, 2]))
        assert await batches.of(named([1, 2]), during=Calls.end) == Called({}, {})
        assert (batches.kept, now_ms()) == ({}, 40)

    Batches(service, limits(4)).run(whole)
    assert sorted(service.cancelled) == [1, 2]


def test_a_time_out_ends_a_call_of_an_earlier_batch() -> None:
    service = Service(lambda row, attempt: 10 if row == 0 else 5_000)

    async def whole(batches: Batches) -> None:
        await batches.of(named([0, 1]))
        found = await batches.of(named([1]))
        assert isinstance(found.failed[0], TimeoutError)
        assert now_ms() == 200

    Batches(service, limits(4, timeout_ms=200)).run(whole)


@given(
    ms=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 80)), max_size=30),
    concurrency=st.integers(1, 6),
    commit_ms=st.integers(0, 30),
)
def test_over_all_batches_each_record_is_called_once_and_in_order(
    ms: list[tuple[int, int]], concurrency: int, commit_ms: int
) -> None:
    """``ms``: of each record its partition, and how long its call takes."""
    service = Service(lambda row, attempt: ms[row][1])
    committed: dict[int, list[int]] = {0: [], 1: [], 2: []}

    async def whole(batches: Batches) -> None:
        left = list(range(len(ms)))
        turn = 0
        while left:
            turn += 1
            rows = named(left, [ms[row][0] for row in left])
            interrupt = Calls.interrupt if turn % 3 == 0 else None
            found = await batches.of(rows, during=interrupt)
            if found.more:
                continue
            done: list[int] = []
            open_ = {0, 1, 2}
            for at, row in enumerate(left):
                if at not in found.results:
                    open_.discard(ms[row][0])
                elif ms[row][0] in open_:
                    assert found.results[at] == row * 10
                    done.append(row)
            assert done, "a batch of nothing"
            for row in done:
                committed[ms[row][0]].append(row)
            left = [row for row in left if row not in done]
            await pause(commit_ms)

    Batches(service, limits(concurrency)).run(whole)
    assert sorted(row for row, _ in service.began) == list(range(len(ms)))
    assert all(rows == sorted(rows) for rows in committed.values())
    assert service.most <= concurrency


# --- an operator ----------------------------------------------------------------------------------


EDGE = EdgeType(pa.string(), pa.int64())
SOURCES = [source("in", key=serdes.string(), value=serdes.long())]


@pytest.fixture(autouse=True, scope="module")
def ends_the_loop() -> Iterator[None]:
    yield
    close_event_loop()


def batch(values: list[int], partitions: list[int] | None = None) -> EdgeBatch:
    """Offsets count in each partition."""
    partitions = partitions or [0] * len(values)
    offsets = [partitions[:row].count(one) for row, one in enumerate(partitions)]
    return edge_batch(
        [f"k{value}" for value in values],
        values,
        EDGE.key,
        EDGE.value,
        partition=np.array(partitions, np.int32),
        offset=np.array(offsets, np.int64),
    )


def operator(
    fn: Callable[[Any, Any], Any],
    op: str = "map_values",
    awaited: bool = True,
    concurrency: int = 4,
) -> FunctionNode:
    asked = limits(concurrency, awaited=awaited)
    return FunctionNode("node", ("in",), EDGE, "MAP", op, fn, calls=asked)


def called(
    node: FunctionNode,
    given: EdgeBatch,
    calls: MakesCalls = AT_LEISURE,
    known: KnownResults | None = None,
) -> EdgeBatch:
    return run_function(node, Failures(node, SOURCES, given, True), 1, known, calls)


async def doubled(key: str, value: int) -> int:
    await pause(value % 3)
    return value * 2


async def spread(key: str, value: int) -> Any:
    for number in range(value):
        yield number


async def listed(key: str, value: int) -> list[int]:
    return list(range(value))


async def odd(key: str, value: int) -> bool:
    return value % 2 == 1


def test_results_stand_in_the_order_of_the_records() -> None:
    given = batch(list(range(30)), [row % 3 for row in range(30)])
    found = called(operator(doubled), given)
    assert found.value.to_pylist() == [value * 2 for value in range(30)]
    assert found.offset.tolist() == given.offset.tolist()


@pytest.mark.parametrize("fn", [spread, listed, lambda key, value: range(value)])
def test_each_way_to_give_several_values(fn: Callable[[Any, Any], Any]) -> None:
    awaited = fn in (spread, listed)
    found = called(operator(fn, "flat_map_values", awaited), batch([2, 0, 1]))
    assert found.value.to_pylist() == [0, 1, 0]
    assert found.key.to_pylist() == ["k2", "k2", "k1"]


def test_a_filter_and_an_effect() -> None:
    assert called(operator(odd, "filter"), batch([1, 2, 3])).value.to_pylist() == [1, 3]
    assert called(operator(odd, "filter_not"), batch([1, 2, 3])).value.to_pylist() == [2]
    assert called(operator(odd, "for_each"), batch([1, 2, 3])).value.to_pylist() == [1, 2, 3]


def test_a_lambda_that_gives_a_coroutine_is_awaited() -> None:
    node = operator(lambda key, value: doubled(key, value), awaited=False)
    assert called(node, batch([1, 2])).value.to_pylist() == [2, 4]


def test_plain_functions_are_called_at_the_same_time() -> None:
    all_here = threading.Barrier(4, timeout=30)

    def fn(key: str, value: int) -> int:
        all_here.wait()
        return value + 1

    found = called(operator(fn, awaited=False), batch([1, 2, 3, 4]))
    assert found.value.to_pylist() == [2, 3, 4, 5]


def partly(calls: dict[int, Any]) -> MakesCalls:
    """Has these rows called alone: with results, or errors."""

    def make(
        ask: Any, taken: Any, rows: Any, limits: Any, every: bool, named: Any = None
    ) -> Called:
        failed = {row: found for row, found in calls.items() if isinstance(found, BaseException)}
        return Called({row: calls[row] for row in calls if row not in failed}, failed)

    return make


def test_a_batch_ends_in_each_partition_before_the_first_record_that_was_not_called() -> None:
    given = batch(list(range(8)), [0, 0, 1, 1, 0, 1, 2, 2])
    known = KnownResults()
    with pytest.raises(CallsEnded) as ended:
        called(operator(doubled), given, partly({0: 0, 2: 4, 3: 6, 5: 10, 6: 12, 7: 14}), known)
    assert ended.value.ends == {TopicPartition("in", 0): 1}
    rest = given.take(np.array([0, 2, 3, 5, 6, 7]))
    found = called(operator(doubled), rest, partly({}), known)  # nothing is called again
    assert found.value.to_pylist() == [0, 4, 6, 10, 12, 14]


def test_records_that_have_come_are_taken_in_with_the_answers_that_are_there() -> None:
    given, known = batch(list(range(4)), [0, 0, 1, 1]), KnownResults()
    asked: list[Named | None] = []

    def make(
        ask: Any, taken: Any, rows: Any, limits: Any, every: bool, named: Any = None
    ) -> Called:
        asked.append(named)
        first = len(asked) == 1
        return Called({1: 2} if first else dict.fromkeys(rows, 7), {}, more=first)

    with pytest.raises(MoreRecords):
        called(operator(doubled), given.take(np.arange(3)), make, known)
    found = called(operator(doubled), given, make, known)
    assert found.value.to_pylist() == [7, 2, 7, 7]
    both = [one for one in asked if one is not None]
    assert [one.slot for one in both] == [1, 1]
    assert both[0].places == [(LOG, 0, 0), (LOG, 1, 0), (TopicPartition("in", 1), 0, 0)]
    assert [sorted(one.firsts) for one in both] == [[0, 2], [0, 1]]
    assert [one.ready for one in both] == [False, False]


def test_of_records_that_fail_those_behind_the_end_are_called_again() -> None:
    given, error = batch(list(range(5))), ValueError()
    with pytest.raises(RecordFailure) as failure:
        called(operator(doubled), given, partly({0: error, 1: 2, 3: error, 4: 8}))
    assert failure.value.ends == {TopicPartition("in", 0): 2}
    assert failure.value.failure.record is not None
    assert failure.value.failure.record.offset == 0
    assert failure.value.others == ()
    with pytest.raises(CallsEnded):
        called(operator(doubled), given, partly({0: 0, 3: error}))


def test_calls_begin_in_turns_over_the_partitions() -> None:
    began: list[tuple[int, int]] = []
    given = batch(list(range(6)), [0, 0, 0, 0, 1, 1])

    def make(
        ask: Any, taken: Any, rows: Any, limits: Any, every: bool, named: Any = None
    ) -> Called:
        began.extend((int(given.partition[row]), int(given.offset[row])) for row in rows)
        return Called(dict.fromkeys(rows, 0), {})

    called(operator(doubled), given, make)
    assert began == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (0, 3)]


def test_a_result_of_another_type_names_its_record() -> None:
    async def fn(key: str, value: int) -> Any:
        return "text" if value == 2 else value

    with pytest.raises(RecordFailure) as failure:
        called(operator(fn), batch([1, 2, 3]))
    assert failure.value.failure.record is not None
    assert failure.value.failure.record.offset == 1


# --- the process's loop ---------------------------------------------------------------------------


@contextmanager
def own_loop() -> Iterator[EventLoop]:
    loop = EventLoop()
    try:
        yield loop
    finally:
        loop.close()
        assert "everflow-calls" not in {
            thread.name for thread in threading.enumerate() if thread is loop._thread
        }


def made(
    loop: EventLoop, fn: Callable[[int], Any], rows: int, asked: CallLimits, **how: Any
) -> Called:
    return loop.call(CallsBatch(**how), fn, None, range(rows), asked, True)


def test_threads_of_calls_that_timed_out_are_left_and_then_the_worker_is_replaced() -> None:
    release = threading.Event()

    def fn(row: int) -> int:
        release.wait(60)
        return row

    with own_loop() as loop:
        found = made(loop, fn, 2, limits(2, timeout_ms=20, awaited=False))
        assert {row: type(error) for row, error in found.failed.items()} == dict.fromkeys(
            (0, 1), TimeoutError
        )
        with pytest.raises(RetriableError, match="2 calls"):
            made(loop, fn, 1, limits(2, awaited=False))
        release.set()
        wait_until(lambda: not loop._threads.late, 30, "the late calls to end")
        assert made(loop, fn, 3, limits(2, 60_000, awaited=False)).results == {0: 0, 1: 1, 2: 2}


def test_a_batch_that_is_not_wanted_at_leisure_ends() -> None:
    began = threading.Event()
    asked: list[bool] = []

    async def fn(row: int) -> int:
        if row:
            began.set()
            await asyncio.Event().wait()
        return row

    def wanted() -> bool:
        asked.append(began.is_set())
        return not began.is_set()

    with own_loop() as loop:
        assert made(loop, fn, 9, limits(4), wanted=wanted) == Called({0: 0}, {})
    assert asked[-1]


def test_the_loop_outlives_what_a_function_leaves_on_it() -> None:
    left: list[Any] = []

    async def ends() -> None:
        raise SystemExit(1)

    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            left.append("cancelled")

    async def fn(row: int) -> int:
        left.append(asyncio.ensure_future(hangs() if row else ends()))
        await pause(0)
        return row

    with own_loop() as loop:
        assert made(loop, fn, 2, limits(1)).results == {0: 0, 1: 1}
        assert made(loop, fn, 1, limits(1)).results == {0: 0}
    assert "cancelled" in left


def test_calls_outlive_a_batch_and_are_cancelled_where_no_batch_will_have_them() -> None:
    release, began = threading.Event(), threading.Event()
    arrived: list[bool] = []

    async def fn(row: int) -> int:
        if row:
            began.set()
        while not (release.is_set() if row else arrived):
            await pause(1)
        return row

    def here() -> bool:
        arrived.append(True)
        return False

    with own_loop() as loop:
        how = CallsBatch(arrived=here)
        rows = named([5, 6])
        assert loop.call(how, fn, None, range(2), limits(4), True, rows) == Called({0: 0}, {})
        loop.keep({LOG: 6})
        release.set()
        ask: Any = None  # nobody is asked again
        assert loop.call(how, ask, None, range(1), limits(4), True, named([6])) == Called(
            {0: 1}, {}
        )
        release.clear()
        loop.call(how, fn, None, range(2), limits(4), True, named([7, 8]))
        kept = [call for one in loop._kept.values() for call in one.values()]
        loop.keep({})
        assert not any(loop._kept.values())
        assert [call.dropped for call in kept if call.outcome is None] == [True]


# --- the gate -------------------------------------------------------------------------------------


def test_a_batch_is_wanted_at_leisure_while_nobody_waits_for_its_thread() -> None:
    book = GateBook()
    backend = GateBackend(
        lambda: MemberMetadata(1, "m", None), lambda member: b"", lambda offsets: True
    )

    def is_wanted() -> bool:
        return bool(answer(book, backend, {"op": "wanted", "batch": "b.0.0"})["ok"])

    assert not is_wanted()  # it is not in flight
    assert book.begin("b.0.0", 1, EXACTLY_ONCE_V2, {})
    book.hurry(0)
    assert is_wanted()
    book.hurry(1)
    assert not is_wanted()
    book.at_leisure(1)
    assert is_wanted()
    book.end("b.0.0")
    assert not is_wanted()
