"""Internal and output topics, racks: created once (I10), validated, expired (scenario 15)."""

import re
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations_with_replacement

import pytest

from everflow import StreamsBuilder
from everflow.errors import (
    EverflowError,
    FatalError,
    InternalTopicError,
    MissingSourceTopicError,
    OffsetsExpiredError,
    RetriableError,
    TopologyError,
)
from everflow.instance.topics.end_offsets import RACKS_PERIOD_MS, PartitionRacks
from everflow.instance.topics.internal_topics import (
    CONFIRM_MS,
    LEFT_OUT,
    MISSING_ANSWERS,
    PERIOD_MS,
    InputIds,
    Ran,
    TopicChanges,
    TopicFacts,
    TopicSpec,
    TopicWatch,
    fixed_outputs,
    missing_outputs,
    prepare,
    problems,
)
from everflow.kafka.admin import TopicDescription
from everflow.records import TopicPartition
from everflow.testing.waiting import wait_until
from unit.manual_clock import ManualClock

REPARTITION = TopicSpec("app-by-x-repartition", 2, {"cleanup.policy": "delete"}, "repartition")
CHANGELOG = TopicSpec("app-counts-changelog", 2, {"cleanup.policy": "compact"}, "changelog")
INPUT = TopicPartition("in", 0)


class FakeTopics:
    def __init__(
        self, existing: Mapping[str, TopicFacts], end: int = 0, committed: bool = False
    ) -> None:
        self.existing, self.end = dict(existing), end
        self.said = Ran(committed=committed)
        self.others = frozenset[str]()
        self.created: list[str] = []

    def topics(self, names: Iterable[str]) -> Mapping[str, TopicFacts]:
        return {name: self.existing[name] for name in names if name in self.existing}

    def create(self, topics: Iterable[TopicSpec]) -> None:
        self.created += [spec.name for spec in topics]

    def spans(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        return dict.fromkeys(partitions, (0, self.end))

    def ran(self, partitions: Iterable[TopicPartition]) -> Ran:
        return self.said

    def topics_with_offsets(self) -> frozenset[str]:
        return self.others


GOOD = {
    REPARTITION.name: TopicFacts(2, "id1", {"cleanup.policy": "delete"}),
    CHANGELOG.name: TopicFacts(2, "id2", {"cleanup.policy": "compact"}),
}


def run(topics: FakeTopics) -> frozenset[str]:
    return prepare(topics, "app", [REPARTITION, CHANGELOG], [INPUT])


def test_the_first_start_creates_what_is_missing_also_after_a_start_that_was_cut_off() -> None:
    fresh, half = FakeTopics({}), FakeTopics({CHANGELOG.name: GOOD[CHANGELOG.name]})
    run(fresh)
    run(half)
    assert sorted(fresh.created) == [REPARTITION.name, CHANGELOG.name]
    assert half.created == [REPARTITION.name]


def test_a_later_start_with_everything_in_place_touches_nothing() -> None:
    topics = FakeTopics(GOOD, end=10, committed=True)
    run(topics)
    assert topics.created == []


@pytest.mark.parametrize("gone", [REPARTITION.name, CHANGELOG.name])
def test_a_missing_topic_after_the_first_start_is_an_error_that_names_it(gone: str) -> None:
    topics = FakeTopics(
        {name: facts for name, facts in GOOD.items() if name != gone}, end=10, committed=True
    )
    with pytest.raises(InternalTopicError, match=gone) as error:
        run(topics)
    said = str(error.value)
    other = said.index("another topology (or one with a changed store name)")
    assert other < said.index("everflow reset MODULE:NAME")
    assert topics.created == []


def test_no_offsets_but_records_in_internal_topics_is_never_a_silent_recount() -> None:
    with pytest.raises(OffsetsExpiredError, match="everflow reset MODULE:NAME"):
        run(FakeTopics(GOOD, end=10, committed=False))


def told(topics: FakeTopics, ids: InputIds) -> str:
    with pytest.raises(OffsetsExpiredError) as error:
        prepare(topics, "app", [REPARTITION, CHANGELOG], [INPUT], ids=ids)
    return str(error.value)


def test_an_input_that_was_created_again_while_the_application_was_stopped_is_the_reason() -> None:
    said = told(FakeTopics(GOOD, end=10), InputIds({"in": "a", "old": "c"}, {"in": "b"}))
    assert re.search(r"created again .*: in \(a -> b\)", said)
    assert "--reset-offsets --to-earliest --execute --group app --topic in" in said
    assert "expired" not in said
    assert "group was deleted" not in said


def test_a_group_that_has_other_offsets_was_not_deleted_and_they_did_not_expire() -> None:
    topics = FakeTopics(GOOD, end=10)
    topics.others = frozenset({"other"})
    said = told(topics, InputIds({}, {"in": "b"}))
    assert "offsets of other" in said
    assert "expired" not in said


@pytest.mark.parametrize(("before", "possible"), [({}, True), ({"in": "b"}, False)])
def test_what_brokers_do_not_say_may_be(before: Mapping[str, str], possible: bool) -> None:
    said = told(FakeTopics(GOOD, end=10), InputIds(before, {"in": "b"}))
    assert ("in was deleted" in said) is possible
    assert "offsets.retention.minutes" in said
    assert "group was deleted" in said


def test_offsets_of_another_client_say_where_a_first_start_begins_and_nothing_else() -> None:
    topics = FakeTopics({})
    topics.said = Ran(foreign=frozenset({"in"}))
    run(topics)
    assert sorted(topics.created) == [REPARTITION.name, CHANGELOG.name]


def test_offsets_that_a_tool_has_reset_are_no_first_start() -> None:
    """Their internal topics have records; one that is missing was lost."""
    topics = FakeTopics(GOOD, end=10)
    topics.said = Ran(foreign=frozenset({"in"}))
    run(topics)
    assert topics.created == []
    topics = FakeTopics({CHANGELOG.name: GOOD[CHANGELOG.name]}, end=10)
    topics.said = Ran(foreign=frozenset({"in"}))
    with pytest.raises(InternalTopicError, match=REPARTITION.name):
        run(topics)


NEW = TopicSpec("app-extra-changelog", 2, {"cleanup.policy": "compact"}, "changelog")
HAD = {"changelog": frozenset({"counts-changelog"}), "repartition": frozenset({"by-x-repartition"})}


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize(
    ("missing", "known", "new"),
    [
        ({NEW.name}, HAD, True),
        ({REPARTITION.name}, {**HAD, "repartition": frozenset()}, True),
        ({NEW.name, REPARTITION.name}, {**HAD, "repartition": frozenset()}, True),
        ({CHANGELOG.name}, HAD, False),
        ({REPARTITION.name}, HAD, False),
        ({NEW.name, CHANGELOG.name}, HAD, False),
        ({NEW.name}, {}, False),
        ({REPARTITION.name}, {"changelog": frozenset({"counts-changelog"})}, False),
        ({NEW.name}, {"changelog": frozenset({"counts-changelog"})}, True),
    ],
)
def test_only_topics_that_the_application_never_had_are_created_and_only_when_asked(
    missing: set[str], known: Mapping[str, frozenset[str]], new: bool, create: bool
) -> None:
    specs = [REPARTITION, CHANGELOG, NEW]
    good = {**GOOD, NEW.name: GOOD[CHANGELOG.name]}
    topics = FakeTopics({name: one for name, one in good.items() if name not in missing}, end=10)
    topics.said = Ran(committed=True, known=known)
    if new and create:
        prepare(topics, "app", specs, [INPUT], create_new=True)
        assert set(topics.created) == missing
        return
    with pytest.raises(InternalTopicError) as error:
        prepare(topics, "app", specs, [INPUT], create_new=create)
    assert topics.created == []
    said = str(error.value)
    assert ("--create-new-topics" in said) is new
    assert any(name in said for name in missing)


class StartedMeanwhile(FakeTopics):
    """Another instance starts for the first time: of its three acts each is done before one of the
    looks of this one."""

    def __init__(self, before: Sequence[int]) -> None:
        super().__init__({})
        self._before, self._looks = list(before), 0

    def _look(self) -> None:
        created, committed, wrote = (before <= self._looks for before in self._before)
        if created:
            self.existing.update(GOOD)
        self.said, self.end = Ran(committed=committed), 10 if wrote else 0
        self._looks += 1

    def topics(self, names: Iterable[str]) -> Mapping[str, TopicFacts]:
        self._look()
        return super().topics(names)

    def spans(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        self._look()
        return super().spans(partitions)

    def ran(self, partitions: Iterable[TopicPartition]) -> Ran:
        self._look()
        return super().ran(partitions)


@pytest.mark.parametrize("before", combinations_with_replacement(range(5), 3))
def test_another_that_starts_first_is_no_lost_state(before: tuple[int, int, int]) -> None:
    run(StartedMeanwhile(before))


def test_wrong_partition_counts_are_named() -> None:
    topics = FakeTopics({**GOOD, CHANGELOG.name: TopicFacts(3, None, {})}, committed=True)
    with pytest.raises(InternalTopicError, match=r"3 partitions.*2"):
        run(topics)


@pytest.mark.parametrize(
    ("spec", "policy", "bad"),
    [
        (CHANGELOG, "compact", False),
        (CHANGELOG, "delete", True),
        (CHANGELOG, "compact,delete", True),
        (REPARTITION, "delete", False),
        (REPARTITION, "compact", True),
        (
            TopicSpec("w", 2, {"cleanup.policy": "compact,delete"}, "changelog"),
            "delete,compact",
            False,
        ),
        (TopicSpec("w", 2, {"cleanup.policy": "compact,delete"}, "changelog"), "delete", False),
    ],
)
def test_only_policies_that_lose_are_refused(spec: TopicSpec, policy: str, bad: bool) -> None:
    assert bool(problems(spec, TopicFacts(2, None, {"cleanup.policy": policy}))) is bad


@pytest.mark.parametrize("setting", ["retention.ms", "retention.bytes"])
def test_a_topic_that_brokers_delete_from_by_themselves_is_no_witness(setting: str) -> None:
    """Where its log begins says nothing of what was committed (note 064)."""
    assert run(FakeTopics({})) == {REPARTITION.name}
    assert run(FakeTopics(GOOD, committed=True)) == {REPARTITION.name}
    all_kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    for value, kept in (("-1", {REPARTITION.name}), ("604800000", set())):
        facts = TopicFacts(2, "id1", {**all_kept, setting: value})
        topics = FakeTopics({**GOOD, REPARTITION.name: facts}, committed=True)
        assert run(topics) == kept


def test_a_topic_new_in_a_release_is_created_and_told(caplog: pytest.LogCaptureFixture) -> None:
    left_out = TopicSpec("app-t-left-out-changelog", 2, {"cleanup.policy": "compact"}, LEFT_OUT)
    topics = FakeTopics(GOOD, end=10, committed=True)
    with caplog.at_level("WARNING"):
        prepare(topics, "app", [REPARTITION, CHANGELOG, left_out], [INPUT])
    assert topics.created == [left_out.name]
    assert [x.levelname for x in caplog.records if left_out.name in x.getMessage()] == ["WARNING"]


def test_the_outputs_known_at_start_are_the_ones_named_in_the_program() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.to("out")
    stream.to(lambda record: str(record.key))
    stream.repartition(name="by-key").to("also")
    found = fixed_outputs(builder.build(), "letters")
    assert set(found) == {"out", "also", "letters"}
    assert str(found["out"]).startswith(__file__)


def test_a_missing_one_is_named_with_the_command_that_creates_it() -> None:
    error = missing_outputs({"nope": "program.py:3"}, False, 6)
    assert isinstance(error, TopologyError)
    assert str(error).startswith("output topic nope ")
    assert "everflow topic create nope:6 --bootstrap-servers" in str(error)
    assert error.where == "program.py:3"


def test_a_missing_dead_letter_topic_is_called_one() -> None:
    alone = str(missing_outputs({"letters": None}, False, 6, "letters"))
    assert "letters (errors.dead.letter.queue.topic.name) does not" in alone
    assert "output topic" not in alone
    assert "everflow topic create letters:" in alone
    both = missing_outputs({"letters": None, "nope": "program.py:3"}, False, 6, "letters")
    assert both is not None
    places = r"output topic nope .* letters \(errors\.dead\.letter\.queue\.topic\.name\) "
    assert re.match(places, str(both))
    assert both.where == "program.py:3"


@pytest.mark.parametrize("creates", [True, None])
def test_brokers_that_create_topics_or_say_nothing_stop_nobody(creates: bool | None) -> None:
    assert missing_outputs({"nope": None}, creates, 6) is None
    assert missing_outputs({}, False, 6) is None


TP = TopicPartition("in", 0)


def test_racks_are_read_once_a_minute_and_kept_where_nobody_answers() -> None:
    clock, asked = ManualClock(), list[Collection[str]]()

    def read(topics: Collection[str]) -> Mapping[TopicPartition, frozenset[str]]:
        asked.append(topics)
        if len(asked) > 1:
            raise RetriableError("away")
        return {TP: frozenset({"a", "b"})}

    racks = PartitionRacks(read, ["in"], clock)
    assert racks.racks() == {}
    racks.refresh()
    racks.refresh()
    assert len(asked) == 1
    clock.advance(RACKS_PERIOD_MS)
    racks.refresh()
    assert len(asked) == 2
    assert racks.racks() == {TP: frozenset({"a", "b"})}
    none = PartitionRacks(read, [], clock)
    none.refresh()
    assert len(asked) == 2


# Topics that are no longer those of the start.

WATCHED_INPUT, WATCHED_CHANGELOG = "in", "app-counts-changelog"


def topics(
    topic_id: str = "a", partitions: int = 2, log_id: str = "x", log_partitions: int = 2
) -> dict[str, TopicDescription]:
    return {
        WATCHED_INPUT: TopicDescription(WATCHED_INPUT, partitions, topic_id),
        WATCHED_CHANGELOG: TopicDescription(WATCHED_CHANGELOG, log_partitions, log_id),
    }


def changes() -> TopicChanges:
    return TopicChanges(
        "app", {WATCHED_INPUT: 2}, {WATCHED_INPUT}, {WATCHED_INPUT, WATCHED_CHANGELOG}
    )


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
    assert re.search("Topic in .*created again", said)
    assert "--reset-offsets --to-earliest --execute --group app --topic in" in said


def test_an_internal_topic_that_was_created_again_has_lost_its_records() -> None:
    said = confirmed(topics(log_id="y"))
    assert re.search(f"Topic {WATCHED_CHANGELOG} .*created again", said)
    assert "from a backup" in said
    assert "--reset-offsets" not in said


@pytest.mark.parametrize(
    ("now", "line"),
    [
        (topics(partitions=4), "Topic in has now 4 partitions, was 2"),
        (topics(log_partitions=3), f"Topic {WATCHED_CHANGELOG} has now 3 partitions, was 2"),
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
    inputs = {WATCHED_INPUT, WATCHED_CHANGELOG}
    decision = TopicChanges(
        "app",
        {WATCHED_INPUT: 2},
        {WATCHED_INPUT},
        inputs,
        why_not=lambda now, name, count: None if count > now[name] else "a reason",
    )
    for _ in range(3):
        assert decision.after(topics(partitions=4)) is None
        assert not decision.suspected
    decision.grow({WATCHED_INPUT: 4})
    assert decision.after(topics(partitions=4)) is None
    assert decision.after(topics(partitions=3)) is None
    said = str(decision.after(topics(partitions=3)))
    assert "has now 3 partitions, was 4" in said
    assert "for a reason" in said


def without(topic: str) -> dict[str, TopicDescription]:
    return {name: state for name, state in topics().items() if name != topic}


@pytest.mark.parametrize(
    ("topic", "error", "way_on"),
    [
        (
            WATCHED_CHANGELOG,
            InternalTopicError,
            "records of app-counts-changelog are lost. ",
        ),
        (
            WATCHED_INPUT,
            MissingSourceTopicError,
            "--reset-offsets --to-earliest --execute --group app",
        ),
    ],
)
def test_a_topic_that_stays_away_stops_it(topic: str, error: type[FatalError], way_on: str) -> None:
    decision = changes()
    assert decision.after(topics()) is None
    said = [decision.after(without(topic)) for _ in range(MISSING_ANSWERS)]
    assert said[:-1] == [None] * (MISSING_ANSWERS - 1), said
    assert type(said[-1]) is error
    assert f"Topic {topic} was deleted" in str(said[-1])
    assert way_on in str(said[-1])


def test_topics_deleted_together_are_named_together_also_one_gone_before_the_first_answer() -> None:
    decision = changes()
    said = [decision.after({}) for _ in range(MISSING_ANSWERS)]
    assert isinstance(said[-1], InternalTopicError)
    assert f"Topics {WATCHED_CHANGELOG}, {WATCHED_INPUT} were deleted" in str(said[-1])


def test_answers_without_a_topic_count_only_in_a_row() -> None:
    decision = changes()
    for _ in range(3):
        answers = [decision.after(without(WATCHED_CHANGELOG)) for _ in range(MISSING_ANSWERS - 1)]
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
        {WATCHED_CHANGELOG: topics()[WATCHED_CHANGELOG]},
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
            brokers.watch.doubt([WATCHED_INPUT])
        return ask()

    brokers.watch = TopicWatch(read, changes(), brokers.failed, brokers.clock)
    brokers.watch.start()
    wait_until(lambda: brokers.failures, 10, "the change to be told")
    assert brokers.asked_ms == [0.0, PERIOD_MS, PERIOD_MS + CONFIRM_MS]
    assert len(brokers.answers) == 1, "no further look"


def test_a_doubt_changes_nothing_about_topics_that_are_the_same_or_only_missing() -> None:
    decision = changes()
    assert decision.after(topics()) is None
    assert decision.after(topics(), {WATCHED_INPUT}) is None
    assert not decision.suspected
    for _ in range(MISSING_ANSWERS - 1):
        assert (
            decision.after({WATCHED_CHANGELOG: topics()[WATCHED_CHANGELOG]}, {WATCHED_INPUT})
            is None
        )
    assert decision.after(topics("b"), {WATCHED_CHANGELOG}) is None, "of another topic"
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
    assert decision.topics == {WATCHED_INPUT, WATCHED_CHANGELOG, "new"}
    now = {**topics(), "new": topics()[WATCHED_INPUT]}
    assert decision.after(now) is None
    assert not decision.suspected
    for _ in range(MISSING_ANSWERS - 1):
        assert decision.after(topics()) is None
    error = decision.after(topics())
    assert isinstance(error, MissingSourceTopicError)
    assert "Topic new was deleted" in str(error)
