"""The inputs' ends: a log that has shrunk below what was read is never passed over in silence."""

import math
import queue
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence

import pytest

from everflow.clock import SystemClock
from everflow.errors import EverflowError, FatalError, RetriableError
from everflow.instance.tasks.task import ActiveTask
from everflow.instance.thread.planning import AGAIN_MS, IdleSources, IdleTimes
from everflow.instance.topics.end_offsets import (
    BUSY_PERIOD_MS,
    LOG_PERIOD_MS,
    OTHERS_PAUSE_MS,
    PERIOD_MS,
    EndOffsets,
    ShrunkLogs,
)
from everflow.records import OffsetRange, TaskId, TopicPartition
from everflow.testing.waiting import wait_until
from everflow.topology.idle_sources import IdleSource
from unit.manual_clock import ManualClock

TP, OTHER = TopicPartition("in", 0), TopicPartition("in", 1)
Ends = Mapping[TopicPartition, int]


class Polled:
    """`EndOffsets` over one partition whose position, end and log end the test sets."""

    def __init__(self, position: int, end: int) -> None:
        self.position, self.end, self.log_end = position, end, end
        self.away = False
        self.ids: tuple[str, str] | EverflowError = ("a", "b")
        self.clock = ManualClock()
        self.ends = EndOffsets(
            lambda _: {TP: self.end},
            self.clock,
            15,
            ShrunkLogs("app", self.held, self.log_ends, self.clock, self.topic_ids),
        )
        self.ends.watch(0, [TP], threading.Event())

    def held(self) -> Ends:
        return {TP: self.position}

    def log_ends(self, asked: Sequence[TopicPartition]) -> Ends:
        if self.away:
            raise RetriableError("away")
        return dict.fromkeys(asked, self.log_end)

    def topic_ids(self, topic: str) -> tuple[str, str]:
        assert topic == TP.topic
        if isinstance(self.ids, EverflowError):
            raise self.ids
        return self.ids

    def poll(self, pause_ms: float = PERIOD_MS) -> None:
        self.clock.advance(pause_ms)
        self.ends.poll_once()


def test_an_end_before_the_position_twice_is_an_error_that_says_where_and_what_to_do() -> None:
    polled = Polled(100, 12)
    polled.poll()
    for _ in range(5):
        polled.poll(PERIOD_MS / 10)  # not yet a second
    with pytest.raises(FatalError, match=r"in-0.*12.*position.*100") as error:
        polled.poll()
    assert "created again" in str(error.value)
    assert "--reset-offsets --to-earliest --execute --group app --topic in" in str(error.value)


@pytest.mark.parametrize(
    ("ids", "said", "unsaid"),
    [
        (("a", "b"), "a -> b", "lost records"),
        (("a", "a"), "lost records", "created again"),
        (("", "b"), "do not report", "created again"),
        (("a", ""), "do not report", "lost records"),
        (RetriableError("nobody answers"), "nobody answers", "lost records"),
    ],
)
def test_a_topic_id_says_why(ids: tuple[str, str] | EverflowError, said: str, unsaid: str) -> None:
    polled = Polled(100, 12)
    polled.ids = ids
    polled.poll()
    with pytest.raises(FatalError, match="in-0 ends at 12") as error:
        polled.poll()
    assert said in str(error.value)
    assert unsaid not in str(error.value)


def test_an_end_that_is_behind_for_a_moment_is_none() -> None:
    """A change of leader; later it happens again, which is no second answer in a row."""
    polled = Polled(100, 100)
    for end in (100, 90, 100, 90, 101):
        polled.end = polled.log_end = end
        polled.poll()
    assert polled.ends.ends() == {TP: 101}


def test_an_open_transaction_below_the_position_is_no_shrunk_log() -> None:
    """A position of at-least-once times beyond the last stable offset: what lies between is in the
    log."""
    polled = Polled(100, 40)
    polled.log_end = 100
    for _ in range(4):
        polled.poll()
    assert polled.ends.ends() == {TP: 40}


def test_brokers_that_do_not_answer_the_second_question_are_asked_again() -> None:
    polled = Polled(100, 12)
    polled.away = True
    for _ in range(3):
        polled.poll()
    assert polled.ends.failing_ms() > 0
    polled.away = False
    with pytest.raises(FatalError):
        polled.poll()


def test_the_error_reaches_the_stream_threads() -> None:
    polled = Polled(100, 12)
    polled.ends.idle(0, True)
    polled.ends.start()  # the manual clock moves on with each wait
    for thread in threading.enumerate():
        if thread.name == "everflow-end-offsets":
            thread.join(10)
    assert isinstance(polled.ends.failure, FatalError)


def test_an_instance_that_ends_is_refused_by_its_client_not_by_brokers() -> None:
    """Counted as away, they cut off after 4 s a batch whose commit they would have taken."""
    polled, stopping = Polled(0, 12), threading.Event()

    def read(asked: Sequence[TopicPartition]) -> Ends:
        if stopping.is_set() or polled.away:
            raise RetriableError("stopped while listing offsets, or away")
        return dict.fromkeys(asked, 12)

    ends = EndOffsets(read, polled.clock, 15, None, stopping)
    ends.watch(0, [TP], threading.Event())
    ends.poll_once()
    stopping.set()
    ends.poll_once()
    polled.clock.advance(10_000)
    assert ends.failing_ms() == 0
    stopping.clear()
    polled.away = True
    ends.poll_once()
    stopping.set()
    polled.clock.advance(10_000)
    ends.poll_once()
    assert ends.failing_ms() == 10_000, "they were away before"


def test_who_asks_for_fresh_ends_gets_what_is_there_now() -> None:
    """The poller itself would look again after a minute only."""
    end, answers = [5], threading.Event()

    def read(_: Sequence[TopicPartition]) -> Ends:
        answers.set()
        return {TP: end[0]}

    ends = EndOffsets(read, SystemClock(), 60_000)
    ends.watch(0, [TP], threading.Event())
    ends.idle(0, True)
    ends.refresh(60_000)  # nobody would answer yet: it does not wait
    assert ends.ends() == {}
    ends.start()
    assert answers.wait(10)
    for end[0] in (6, 7, 8):

        def seen() -> bool:
            ends.refresh(10_000)  # a question of the last 3 ms counts as fresh
            return ends.ends() == {TP: end[0]}

        wait_until(seen, 10, "the end", ends.ends)
    ends.close()


@pytest.mark.parametrize(("logs", "period_ms"), [(4, BUSY_PERIOD_MS), (1_000, 20_000.0)])
def test_many_logs_are_asked_less_often_where_nobody_waits(logs: int, period_ms: float) -> None:
    pauses: list[float] = []

    class Noted(ManualClock):
        def wait(self, event: threading.Event, timeout_ms: float) -> bool:
            pauses.append(timeout_ms)
            ends.close()
            return True

    ends = EndOffsets(lambda asked: dict.fromkeys(asked, 5), Noted(), 15)
    ends.watch(0, [TopicPartition("in", number) for number in range(logs)], threading.Event())
    ends._run()
    assert pauses == [period_ms]
    assert period_ms == max(BUSY_PERIOD_MS, logs * LOG_PERIOD_MS)


def test_fresh_ends_are_not_waited_for_longer_than_allowed() -> None:
    asked, go_on = threading.Event(), threading.Event()

    def read(_: Sequence[TopicPartition]) -> Ends:
        asked.set()
        assert go_on.wait(10)
        return {TP: 5}

    ends = EndOffsets(read, SystemClock(), 60_000)
    ends.watch(0, [TP], threading.Event())
    ends.start()
    assert asked.wait(10)
    ends.refresh(1)  # the brokers hang
    assert ends.ends() == {}
    go_on.set()
    ends.close()


class Told:
    """A `Growth` of which the test says what it tells and when it fails."""

    def __init__(self) -> None:
        self.waiting: list[Ends] = []
        self.news: queue.Queue[Ends | EverflowError] = queue.Queue()
        self.closed = threading.Event()

    def wait(self, ends: Ends, timeout_s: float) -> Ends:
        self.waiting.append(ends)
        try:
            told = self.news.get(timeout=timeout_s)
        except queue.Empty:
            return {}
        if isinstance(told, EverflowError):
            raise told
        return told

    def close(self) -> None:
        self.closed.set()


class Following:
    """`EndOffsets` of two threads whose growth is told; questions are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("everflow.instance.topics.end_offsets.FOLLOW_AFTER_MS", 10.0)
        self.growth, self.questions = Told(), 0
        self.answer: Ends = {TP: 5, OTHER: 5}
        self.wakes = {0: threading.Event(), 1: threading.Event()}
        self.ends = EndOffsets(self.read, SystemClock(), 5, open_growth=lambda: self.growth)
        self.ends.watch(0, [TP], self.wakes[0])
        self.ends.watch(1, [OTHER], self.wakes[1])

    def read(self, _: Sequence[TopicPartition]) -> Ends:
        self.questions += 1
        return self.answer

    def until_live(self) -> None:
        wait_until(lambda: self.ends._live, 10, "growth is told", lambda: self.growth.waiting)


@pytest.fixture
def following(monkeypatch: pytest.MonkeyPatch) -> Iterator[Following]:
    made = Following(monkeypatch)
    made.ends.start()
    yield made
    made.ends.close()


def test_who_waits_is_told_and_the_brokers_are_no_longer_asked(following: Following) -> None:
    following.ends.idle(0, True)
    following.until_live()
    for wake in following.wakes.values():
        wake.clear()
    asked = following.questions
    for end in (6, 7, 8):
        following.growth.news.put({OTHER: end})
        assert following.wakes[1].wait(10), "also a thread that was at work when it was asked"
        following.wakes[1].clear()
        assert following.ends.ends() == {TP: 5, OTHER: end}
    following.until_live()
    following.ends.refresh(10_000)  # they are live: no question
    assert following.questions <= asked + 1
    assert not following.wakes[0].is_set()
    assert {TP: 5, OTHER: 8} in following.growth.waiting


def test_while_nobody_waits_nothing_is_followed(following: Following) -> None:
    following.ends.idle(0, True)
    following.until_live()
    following.ends.idle(0, False)
    following.growth.news.put({TP: 6})
    wait_until(lambda: not following.ends._live, 10, "it is over", following.ends.ends)
    before = len(following.growth.waiting)
    following.answer = {TP: 9, OTHER: 9}

    def asked_again() -> bool:
        following.ends.refresh(10_000)
        return following.ends.ends()[TP] == 9

    wait_until(asked_again, 10, "asked again", following.ends.ends)
    assert len(following.growth.waiting) == before


def test_brokers_that_do_not_tell_are_asked(following: Following) -> None:
    following.ends.idle(0, True)
    following.until_live()
    following.growth.news.put(RetriableError("no leader"))
    following.answer = {TP: 7, OTHER: 5}
    wait_until(lambda: following.ends.ends()[TP] == 7, 10, "by a question", following.ends.ends)
    following.until_live()  # and later they tell again


def test_an_answer_that_is_older_than_what_was_told_does_not_go_back() -> None:
    told = threading.Event()

    def read(_: Sequence[TopicPartition]) -> Ends:
        if ends.ends():
            ends._take_growth({TP: 8})  # while the answer is on its way
            told.set()
        return {TP: 5}

    ends = EndOffsets(read, ManualClock(), 5)
    ends.watch(0, [TP], threading.Event())
    ends.poll_once()
    ends.poll_once()
    assert told.is_set()
    assert ends.ends() == {TP: 8}


def test_who_comes_to_wait_is_not_held_up_by_what_is_known_already(following: Following) -> None:
    """A fetch that was held back tells of old growth: the next one is not paused for."""
    paused: list[float] = []
    following.ends.idle(0, True)
    following.until_live()
    wait = following.ends.clock.wait

    def noted(event: threading.Event, timeout_ms: float) -> bool:
        paused.append(timeout_ms)
        return wait(event, timeout_ms)

    following.ends.clock.wait = noted  # type: ignore[method-assign]
    before = len(following.growth.waiting)
    following.growth.news.put({TP: 5})
    wait_until(lambda: len(following.growth.waiting) > before, 10, "the next wait", lambda: paused)
    assert OTHERS_PAUSE_MS not in paused
    following.growth.news.put({OTHER: 6})  # nobody waits for that
    wait_until(lambda: OTHERS_PAUSE_MS in paused, 10, "a pause", lambda: paused)


def test_the_end_closes_what_tells(following: Following) -> None:
    following.ends.idle(0, True)
    following.until_live()
    following.ends.close()
    assert following.growth.closed.wait(10)


def test_a_leader_that_does_not_answer_hides_the_end_of_no_other_log() -> None:
    clock, asked, away = ManualClock(), [], {OTHER}

    def read(partitions: Sequence[TopicPartition]) -> Ends:
        asked.append(list(partitions))
        told = {tp: 7 + len(asked) for tp in partitions if tp not in away}
        if not told:
            raise RetriableError("nobody answers")
        return told

    ends = EndOffsets(read, clock, 15)
    mine, others = threading.Event(), threading.Event()
    ends.watch(0, [TP], mine)
    ends.watch(1, [OTHER], others)
    away.clear()
    ends.poll_once()
    away.add(OTHER)
    ends.poll_once()
    clock.advance(4_000)
    ends.poll_once()
    assert asked[-1] == [TP], "the silent one is asked about by itself"
    assert ends.ends() == {TP: 10, OTHER: 8}, "it ends where it ended"
    assert ends.silent_ms([TP, OTHER]) == {OTHER: 4_000}
    assert ends.failing_ms() == 0
    ends.poll_silent()
    others.clear()
    away.clear()
    ends.poll_silent()
    assert others.is_set()
    assert ends.silent_ms([TP, OTHER]) == {}
    ends.poll_once()
    assert asked[-1] == [TP, OTHER]
    away.add(OTHER)
    ends.poll_once()
    ends.unwatch(1)
    ends.poll_silent()
    assert ends.silent_ms([OTHER]) == {}, "nobody wants to know"


def test_a_silent_log_is_asked_about_until_it_answers() -> None:
    told = threading.Event()

    def read(partitions: Sequence[TopicPartition]) -> Ends:
        return {tp: 5 for tp in partitions if tp != OTHER or told.is_set()}

    ends = EndOffsets(read, SystemClock(), 5)
    ends.watch(0, [TP, OTHER], threading.Event())
    ends.start()
    try:
        wait_until(lambda: ends.silent_ms([OTHER]), 60, "it to be silent")
        wait_until(lambda: ends.ends() == {TP: 5}, 60, "the other's end")
        told.set()
        wait_until(lambda: ends.ends() == {TP: 5, OTHER: 5}, 60, "its end to be told")
    finally:
        ends.close()


# When a source's sources moves its time, and to what (note 025).

TASK = TaskId(0, 3)
IN, IDLE_OTHER = TopicPartition("in", 3), TopicPartition("other", 3)
SOURCE = IdleSource("s/idle", 5_000)


def reading(times: dict[str, int] | None = None) -> ActiveTask:
    return ActiveTask(
        id=TASK, inputs=(IN, IDLE_OTHER), stream_times={"s/idle": 70} if times is None else times
    )


def look(
    sources: IdleSources, reader: ActiveTask, now_ms: float, waiting: Collection[str] = ()
) -> IdleTimes:
    ranges = {tp: OffsetRange(7, 7 + (tp.topic in waiting)) for tp in reader.inputs}
    return sources.due([reader], ranges, now_ms)


def commit(sources: IdleSources, reader: ActiveTask, moves: IdleTimes, at_ms: float) -> None:
    reader.stream_times.update(moves[TASK])
    sources.advanced([reader], moves, at_ms)


def test_time_goes_on_with_the_clock_once_the_silence_has_lasted() -> None:
    sources, reader = IdleSources({0: {"in": SOURCE}}, lambda topics: True), reading()
    assert look(sources, reader, 1_000) == {}
    assert sources.left_ms == 5_000
    assert look(sources, reader, 5_999) == {}
    assert sources.left_ms == 1
    moves = look(sources, reader, 6_250)
    assert moves == {TASK: {"s/idle": 70 + 5_250}}
    commit(sources, reader, moves, 6_250)
    assert look(sources, reader, 11_249) == {}
    assert look(sources, reader, 11_250) == {TASK: {"s/idle": 70 + 10_250}}


def test_what_was_not_committed_is_asked_for_again() -> None:
    sources, reader = IdleSources({0: {"in": SOURCE}}, lambda topics: True), reading()
    look(sources, reader, 0)
    moves = look(sources, reader, 5_000)
    sources.advanced([reader], moves, 5_000)  # a record was left: the task's time is what it was
    assert look(sources, reader, 5_100) == {TASK: {"s/idle": 70 + 5_100}}


def test_a_record_ends_the_silence_of_its_source_alone() -> None:
    both = {"in": SOURCE, "other": IdleSource("o/idle", 3_000)}
    sources = IdleSources({0: both}, lambda topics: True)
    reader = reading({"s/idle": 70, "o/idle": 500})
    look(sources, reader, 0)
    assert look(sources, reader, 4_000, ["other"]) == {}
    assert look(sources, reader, 4_500) == {}
    assert look(sources, reader, 7_000) == {TASK: {"s/idle": 7_070}}
    assert look(sources, reader, 7_500) == {TASK: {"s/idle": 7_570, "o/idle": 3_500}}


def test_what_has_had_no_record_has_no_time_to_move() -> None:
    sources, reader = IdleSources({0: {"in": SOURCE}}, lambda topics: True), reading({})
    look(sources, reader, 0)
    assert look(sources, reader, 60_000) == {}
    assert sources.left_ms == math.inf


def test_another_owner_counts_anew() -> None:
    sources, reader = IdleSources({0: {"in": SOURCE}}, lambda topics: True), reading()
    look(sources, reader, 0)
    sources.due([], {}, 3_000)
    assert look(sources, reader, 5_000) == {}
    assert look(sources, reader, 10_000) == {TASK: {"s/idle": 10_070 - 5_000}}


def test_a_repartition_topic_is_silent_once_what_feeds_it_is_consumed() -> None:
    asked: list[Collection[str]] = []
    consumed = False

    def ask(topics: Collection[str]) -> bool:
        asked.append(topics)
        return consumed

    fed = IdleSource("s/idle", 5_000, frozenset({"users"}))
    sources, reader = IdleSources({0: {"in": fed}}, ask), reading()
    look(sources, reader, 0)
    assert asked == []
    assert look(sources, reader, 5_000) == look(sources, reader, 5_500) == {}
    assert asked == [frozenset({"users"})]
    assert sources.left_ms == AGAIN_MS
    consumed = True
    assert look(sources, reader, 6_000) == {TASK: {"s/idle": 6_070}}
    assert len(asked) == 2
