"""Topics that are no longer those of the start: made again, or with more partitions."""

import threading
from collections.abc import Mapping

import pytest

from everflow.errors import (
    EverflowError,
    FatalError,
    InternalTopicError,
    MissingSourceTopicError,
    RetriableError,
)
from everflow.instance.topics.internal_topics import (
    CONFIRM_MS,
    MISSING_ANSWERS,
    PERIOD_MS,
    TopicChanges,
    TopicWatch,
)
from everflow.kafka.admin import TopicDescription
from everflow.testing.waiting import wait_until
from unit.manual_clock import ManualClock

INPUT, CHANGELOG = "in", "app-counts-changelog"


def topics(
    topic_id: str = "a", partitions: int = 2, log_id: str = "x", log_partitions: int = 2
) -> dict[str, TopicDescription]:
    return {
        INPUT: TopicDescription(INPUT, partitions, topic_id),
        CHANGELOG: TopicDescription(CHANGELOG, log_partitions, log_id),
    }


def changes() -> TopicChanges:
    return TopicChanges("app", {INPUT: 2}, {INPUT}, {INPUT, CHANGELOG})


def confirmed(now: Mapping[str, TopicDescription]) -> str:
    decision = changes()
    assert decision.after(topics()) is None
    assert decision.after(now) is None, "one answer is not enough"
    assert decision.suspected
    error = decision.after(now)
    assert isinstance(error, FatalError)
    return str(error)


def test_an_input_that_was_created_again_is_named_with_both_ids_and_a_way_on() -> None:
    said = confirmed(topics(topic_id="b"))
    assert "Topic in was deleted and created again while the application ran" in said
    assert "--reset-offsets --to-earliest --execute --group app --topic in" in said


def test_an_internal_topic_that_was_created_again_has_lost_its_records() -> None:
    said = confirmed(topics(log_id="y"))
    assert f"Topic {CHANGELOG} was deleted and created again" in said
    assert "restore the topic from a backup" in said
    assert "--reset-offsets" not in said


@pytest.mark.parametrize(
    ("now", "line"),
    [
        (topics(partitions=4), "Topic in has now 4 partitions, was 2"),
        (topics(log_partitions=3), f"Topic {CHANGELOG} has now 3 partitions, was 2"),
    ],
)
def test_another_number_stops_all_instances(now: Mapping[str, TopicDescription], line: str) -> None:
    said = confirmed(now)
    assert line in said
    assert "Stop all instances" in said


def test_inputs_are_compared_with_what_runs_not_with_the_first_answer() -> None:
    decision = changes()
    assert decision.after(topics(partitions=4)) is None
    assert "has now 4 partitions, was 2" in str(decision.after(topics(partitions=4)))


def test_more_partitions_that_are_taken_up_are_no_change_and_others_are() -> None:
    inputs = {INPUT, CHANGELOG}
    decision = TopicChanges(
        "app", {INPUT: 2}, {INPUT}, inputs, may_grow=lambda now, name, count: count > now[name]
    )
    for _ in range(3):
        assert decision.after(topics(partitions=4)) is None
        assert not decision.suspected
    decision.grow({INPUT: 4})
    assert decision.after(topics(partitions=4)) is None
    assert decision.after(topics(partitions=3)) is None
    assert "has now 3 partitions, was 4" in str(decision.after(topics(partitions=3)))


def without(topic: str) -> dict[str, TopicDescription]:
    return {name: state for name, state in topics().items() if name != topic}


@pytest.mark.parametrize(
    ("topic", "error", "way_on"),
    [
        (
            CHANGELOG,
            InternalTopicError,
            (
                "the records of app-counts-changelog are lost. Stop all instances; restore from a "
                "backup"
            ),
        ),
        (INPUT, MissingSourceTopicError, "--reset-offsets --to-earliest --execute --group app"),
    ],
)
def test_a_topic_that_stays_away_stops_it(topic: str, error: type[FatalError], way_on: str) -> None:
    decision = changes()
    assert decision.after(topics()) is None
    said = [decision.after(without(topic)) for _ in range(MISSING_ANSWERS)]
    assert said[:-1] == [None] * (MISSING_ANSWERS - 1), said
    assert type(said[-1]) is error
    assert f"Topic {topic} was deleted while the application ran" in str(said[-1])
    assert way_on in str(said[-1])


def test_topics_deleted_together_are_named_together_also_one_gone_before_the_first_answer() -> None:
    decision = changes()
    said = [decision.after({}) for _ in range(MISSING_ANSWERS)]
    assert isinstance(said[-1], InternalTopicError)
    assert f"Topics {CHANGELOG}, {INPUT} were deleted" in str(said[-1])


def test_answers_without_a_topic_count_only_in_a_row() -> None:
    decision = changes()
    for _ in range(3):
        answers = [decision.after(without(CHANGELOG)) for _ in range(MISSING_ANSWERS - 1)]
        assert answers == [None] * (MISSING_ANSWERS - 1)
        assert decision.suspected, "it is asked again soon"
        assert decision.after(topics()) is None
        assert not decision.suspected


def test_an_old_answer_of_a_broker_that_is_behind_and_a_missing_topic_change_nothing() -> None:
    decision = changes()
    answers = [
        topics("b"),
        topics("a"),
        topics("b"),
        {},
        topics("b"),
        {CHANGELOG: topics()[CHANGELOG]},
        topics("b"),
    ]
    assert [decision.after(answer) for answer in answers] == [None] * len(answers)
    assert not decision.suspected


class Brokers:
    """Answers in turn; the watch is closed when they are used up."""

    def __init__(self, *answers: Mapping[str, TopicDescription] | EverflowError) -> None:
        self.answers, self.clock = list(answers), ManualClock()
        self.asked_ms: list[float] = []
        self.failures: list[EverflowError] = []
        self.ended = threading.Event()
        self.watch = TopicWatch(self.read, changes(), self.failed, self.clock)

    def read(self) -> Mapping[str, TopicDescription]:
        self.asked_ms.append(self.clock.monotonic_ms())
        answer = self.answers.pop(0)
        if not self.answers:
            self.watch.close()
            self.ended.set()
        if isinstance(answer, EverflowError):
            raise answer
        return answer

    def failed(self, error: EverflowError) -> None:
        self.failures.append(error)
        self.ended.set()


def test_the_watch_asks_seldom_soon_when_in_doubt_and_not_the_absent() -> None:
    brokers = Brokers(topics(), RetriableError(""), topics(), topics("b"), topics("b"), topics("b"))
    brokers.watch.start()
    assert brokers.ended.wait(10)
    times = [0.0, PERIOD_MS, 2 * PERIOD_MS, 3 * PERIOD_MS, 3 * PERIOD_MS + CONFIRM_MS]
    assert brokers.asked_ms == times
    assert len(brokers.failures) == 1, brokers.failures
    assert len(brokers.answers) == 1, "it goes on after its one error"


def test_what_a_leader_doubts_is_confirmed_by_the_next_look() -> None:
    """Not by the second one, nor ten seconds later."""
    brokers = Brokers(topics(), topics(), topics("b"), topics("b"))
    ask = brokers.read

    def read() -> Mapping[str, TopicDescription]:
        if len(brokers.asked_ms) == 1:  # while the second answer is under way: it is of before
            brokers.watch.doubt([INPUT])
        return ask()

    brokers.watch = TopicWatch(read, changes(), brokers.failed, brokers.clock)
    brokers.watch.start()
    wait_until(lambda: brokers.failures, 10, "the change to be told")
    assert brokers.asked_ms == [0.0, PERIOD_MS, PERIOD_MS + CONFIRM_MS]
    assert len(brokers.answers) == 1, "no further look"


def test_a_doubt_changes_nothing_about_topics_that_are_the_same_or_only_missing() -> None:
    decision = changes()
    assert decision.after(topics()) is None
    assert decision.after(topics(), {INPUT}) is None
    assert not decision.suspected
    for _ in range(MISSING_ANSWERS - 1):
        assert decision.after({CHANGELOG: topics()[CHANGELOG]}, {INPUT}) is None
    assert decision.after(topics("b"), {CHANGELOG}) is None, "of another topic"
    assert isinstance(decision.after(topics("b")), FatalError)


def test_a_watch_over_topics_that_stay_ends_silently() -> None:
    brokers = Brokers(topics(), topics(), topics())
    brokers.watch.start()
    assert brokers.ended.wait(10)
    assert brokers.failures == []


def test_a_topic_that_is_read_later_is_watched_from_then_on() -> None:
    """Note 037."""
    decision = changes()
    assert decision.after(topics()) is None
    decision.grow({"new": 2})
    assert decision.after(topics()) is None, "this answer was asked for before"
    assert decision.topics == {INPUT, CHANGELOG, "new"}
    now = {**topics(), "new": topics()[INPUT]}
    assert decision.after(now) is None
    assert not decision.suspected
    for _ in range(MISSING_ANSWERS - 1):
        assert decision.after(topics()) is None
    error = decision.after(topics())
    assert isinstance(error, MissingSourceTopicError)
    assert "Topic new was deleted while the application ran" in str(error)
