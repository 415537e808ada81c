"""KIP-924's shape: what an own assignor sees, which answers are refused, what the helpers build."""

import random
import re
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow.assignment.api import (
    ApplicationState,
    AssignmentError,
    KafkaStreamsAssignment,
    TaskAssignment,
    application_state,
    decide_with,
    default_standby_assignment,
    identity_assignment,
    optimize_rack_aware_standby_tasks,
)
from everflow.assignment.cluster_state import (
    RUNNING,
    AssignmentRules,
    ClusterState,
    Member,
    TaskInfo,
    validate_assignment,
)
from everflow.assignment.user_data import (
    HOSTS_BUDGET_BYTES,
    LATEST_VERSION,
    AnswerError,
    AssignmentData,
    FutureVersionError,
    HostTasks,
    UserData,
    UserDataError,
    decode,
    decode_assignment,
    digest,
    encode,
    encode_assignment,
    hosts_of,
    hosts_within_budget,
    runs,
    tasks_of_runs,
)
from everflow.errors import FatalError
from everflow.records import TaskId, TopicPartition

A, B, C, FREE = TaskId(0, 0), TaskId(0, 1), TaskId(0, 2), TaskId(1, 0)
TASKS = {
    task: TaskInfo(task, (), (TopicPartition("c", task.partition),), True) for task in (A, B, C)
} | {FREE: TaskInfo(FREE, ())}


def cluster(*members: Member, standbys: int = 0, **rules: Any) -> ClusterState:
    return ClusterState(
        members=members,
        tasks=TASKS,
        end_sums=dict.fromkeys((A, B, C), 1_000),
        racks={},
        rules=replace(AssignmentRules(num_standbys=standbys), **rules),
    )


TWO = cluster(
    Member(
        member_id="m1",
        process_id="p1",
        owned=frozenset({A, FREE}),
        generation=3,
        threads=2,
        offset_sums={B: 900},
        rack="r1",
        tags={"zone": "a"},
        endpoint="host:1",
    ),
    Member(member_id="m2", process_id="p2", owned=frozenset({B, C}), generation=3),
)


@dataclass
class Fixed:
    """Answers what it was told to, and notes what it is told."""

    answer: TaskAssignment
    told: list[AssignmentError] = field(default_factory=list)

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        return self.answer

    def on_assignment_computed(self, assignment: TaskAssignment, error: AssignmentError) -> None:
        self.told.append(error)


def on(**given: tuple[set[TaskId], set[TaskId]]) -> TaskAssignment:
    return TaskAssignment(
        {
            one: KafkaStreamsAssignment(frozenset(active), frozenset(standby))
            for one, (active, standby) in given.items()
        }
    )


def test_it_sees_lags_and_what_was_where() -> None:
    one = application_state(TWO).states["p1"]
    assert (one.previous_active, one.previous_standby, one.host, one.rack, one.threads) == (
        {A, FREE},
        {B},
        "host:1",
        "r1",
        2,
    )
    assert (one.lag_for(A), one.lag_for(B), one.lag_for(C)) == (RUNNING, 100, 1_000)
    assert application_state(TWO).states["p2"].previous_tasks_by_lag() == [B, C]


def test_an_answer_is_handed_over_in_two_steps() -> None:
    assignor = Fixed(on(p1=({A, B}, {C}), p2=({C, FREE}, {A})))
    decided = decide_with(assignor)(TWO)
    assert decided.active == {"m1": {A}, "m2": {C}}
    assert decided.withheld == {B, FREE}
    assert decided.standby == {"m1": {B, C}, "m2": {A}}
    assert decided.followup_ms == 0
    assert assignor.told == [AssignmentError.NONE]


def test_it_may_ask_for_a_follow_up() -> None:
    answer = identity_assignment(application_state(TWO))
    assert decide_with(Fixed(answer))(TWO).followup_ms is None
    later = TaskAssignment(
        {**answer.assignments, "p1": replace(answer.assignments["p1"], followup_ms=7_000)}
    )
    assert decide_with(Fixed(later))(TWO).followup_ms == 7_000


def asking(followup_ms: object) -> TaskAssignment:
    asked = KafkaStreamsAssignment(frozenset(TASKS), followup_ms=followup_ms)  # type: ignore[arg-type]
    return TaskAssignment({"p1": asked, "p2": KafkaStreamsAssignment()})


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (asking("soon"), AssignmentError.INVALID_FOLLOWUP),
        (asking(-5), AssignmentError.INVALID_FOLLOWUP),
        (asking(0.5), AssignmentError.INVALID_FOLLOWUP),
        (asking(True), AssignmentError.INVALID_FOLLOWUP),
        (asking(2**63), AssignmentError.INVALID_FOLLOWUP),
        (
            on(p1=({A, B, C, FREE}, set()), p2=({C}, set())),
            AssignmentError.ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES,
        ),
        (on(p1=({A, B, C, FREE}, {A}), p2=(set(), set())), AssignmentError.INVALID_STANDBY_TASK),
        (on(p1=({A, B, C, FREE}, set()), p2=(set(), {FREE})), AssignmentError.INVALID_STANDBY_TASK),
        (on(p1=({A, B, C, FREE}, set())), AssignmentError.MISSING_PROCESS_ID),
        (
            on(p1=({A, B, C, FREE}, set()), p2=(set(), set()), p3=(set(), set())),
            AssignmentError.UNKNOWN_PROCESS_ID,
        ),
        (
            on(p1=({A, B, C, FREE}, {TaskId(9, 9)}), p2=(set(), set())),
            AssignmentError.UNKNOWN_TASK_ID,
        ),
        (on(p1=({A, B, C}, set()), p2=(set(), set())), AssignmentError.ACTIVE_TASK_NOT_ASSIGNED),
    ],
    ids=lambda value: value.name.lower() if isinstance(value, AssignmentError) else "",
)
def test_a_wrong_answer_is_refused_and_said(
    answer: TaskAssignment, error: AssignmentError, caplog: pytest.LogCaptureFixture
) -> None:
    assignor = Fixed(answer)
    decided = decide_with(assignor)(TWO)
    assert assignor.told == [error]
    assert decided.active == {"m1": {A, FREE}, "m2": {B, C}}
    assert decided.withheld == frozenset()
    assert decided.followup_ms == TWO.rules.probing_interval_ms  # then the assignor is asked again
    assert re.search(f"Fixed .* used: {re.escape(str(error.value))}", caplog.text)


@dataclass
class Raises:
    failure: BaseException = field(default_factory=lambda: KeyError("a bug of the user's"))

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        raise self.failure

    def on_assignment_computed(self, assignment: TaskAssignment, error: AssignmentError) -> None:
        raise AssertionError("there is no assignment")


GARBAGE: list[Any] = [
    None,
    {"p1": {A}},
    TaskAssignment(dict.fromkeys(("p1", "p2"), cast(Any, None))),
    TaskAssignment({"p1": KafkaStreamsAssignment(cast(Any, None)), "p2": KafkaStreamsAssignment()}),
]


@pytest.mark.parametrize(
    "assignor", [Raises(), Raises(SystemExit(1)), *(Fixed(answer) for answer in GARBAGE)]
)
def test_a_failure_stops_nobody(assignor: Fixed | Raises, caplog: pytest.LogCaptureFixture) -> None:
    decide = decide_with(assignor)
    for _ in range(2):
        assert decide(TWO).active == {"m1": {A, FREE}, "m2": {B, C}}
    said = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(said) == 2, "each time"
    assert all(type(assignor).__name__ in one.getMessage() and one.exc_info for one in said)


def test_whoever_presses_control_c_is_heard() -> None:
    with pytest.raises(KeyboardInterrupt):
        decide_with(Raises(KeyboardInterrupt()))(TWO)


def test_an_answer_counts_though_its_assignor_hangs(caplog: pytest.LogCaptureFixture) -> None:
    def never_comes_back(name: str, call: Callable[[], object]) -> None:
        call()
        raise TimeoutError(f"{name} has not answered")

    found = decide_with(Fixed(on(p1=({A, B}, set()), p2=({C, FREE}, set()))), never_comes_back)(TWO)
    assert found.active == {"m1": {A}, "m2": {C}}
    assert "Fixed has not answered" in caplog.text


def test_what_nobody_has_is_given_away_though_the_assignor_fails() -> None:
    other_history = {A: 950, B: 700_000}
    first = cluster(
        Member(member_id="m1", process_id="p1", offset_sums={A: 900}),
        Member(member_id="m2", process_id="p2", offset_sums=other_history),
        Member(member_id="m3", process_id="p3"),
    )
    decided = decide_with(Raises())(first)
    assert validate_assignment(decided, first.members, TASKS) == []
    assert A in decided.active["m2"]
    assert all(len(tasks) in (1, 2) for tasks in decided.active.values()), decided
    gone = cluster(
        Member(
            member_id="m1",
            process_id="p1",
            owned=frozenset({A}),
            generation=3,
            offset_sums={B: 400},
        ),
        Member(member_id="m2", process_id="p2", owned=frozenset({FREE}), generation=3),
    )
    decided = decide_with(Raises())(gone)
    assert decided.active == {"m1": {A, B}, "m2": {C, FREE}}


@pytest.mark.parametrize(
    "failure", [RuntimeError("no room for the news"), SystemExit("no room for the news")]
)
def test_an_answer_counts_though_its_assignor_fails_when_it_is_told(
    failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    class FailsWhenTold(Fixed):
        def on_assignment_computed(
            self, assignment: TaskAssignment, error: AssignmentError
        ) -> None:
            raise failure

    decided = decide_with(FailsWhenTold(on(p1=({A, B}, set()), p2=({C, FREE}, set()))))(TWO)
    assert decided.active == {"m1": {A}, "m2": {C}}
    assert "no room for the news" in caplog.text


def test_helpers_build_on_what_is() -> None:
    state = application_state(replace(TWO, rules=AssignmentRules(num_standbys=1)))
    same = identity_assignment(state)
    assert same == on(p1=({A, FREE}, {B}), p2=({B, C}, set()))
    assert default_standby_assignment(state, same) == on(p1=({A, FREE}, {B, C}), p2=({B, C}, {A}))


def test_standbys_are_exchanged_between_racks() -> None:
    racks = {
        info.changelogs[0]: frozenset({"r1" if task == A else "r2"})
        for task, info in TASKS.items()
        if info.stateful
    }
    members = [Member(member_id=f"m{n}", process_id=f"p{n}", rack=f"r{n + 1}") for n in range(3)]
    state = application_state(
        replace(cluster(*members, standbys=1, rack_strategy="min_traffic"), racks=racks)
    )
    before = on(p0=(set(), {B}), p1=(set(), {A}), p2=({A, B, C, FREE}, set()))
    assert optimize_rack_aware_standby_tasks(state, before) == on(
        p0=(set(), {A}), p1=(set(), {B}), p2=({A, B, C, FREE}, set())
    )


def test_a_copied_state_folder_is_named() -> None:
    with pytest.raises(FatalError, match="state folder copied"):
        application_state(
            cluster(
                Member(member_id="m1", process_id="p1"), Member(member_id="m2", process_id="p1")
            )
        )


# The bytes of a rebalance come back, other versions and damage are told, 1,000 members fit.

DATA_TASKS = st.frozensets(st.builds(TaskId, st.integers(0, 12), st.integers(0, 40)), max_size=60)
NAMES = st.text(max_size=12)
ERRORS = st.sampled_from(AnswerError)

USER_DATA = st.builds(
    UserData,
    process_id=NAMES,
    owned=DATA_TASKS,
    generation=st.integers(-1, 2**31),
    threads=st.integers(1, 64),
    offset_sums=st.dictionaries(
        st.builds(TaskId, st.integers(0, 3), st.integers(0, 20)),
        st.integers(-2, 2**62),
        max_size=20,
    ),
    rack=NAMES,
    tags=st.dictionaries(NAMES, NAMES, max_size=3),
    endpoint=NAMES,
    draining=st.booleans(),
    instance_id=st.none() | NAMES,
    topology=NAMES,
    error=ERRORS,
    nonce=st.integers(0, 2**32 - 1),
)
HOSTS = st.dictionaries(NAMES, st.builds(HostTasks, DATA_TASKS, DATA_TASKS), max_size=4)
ASSIGNMENTS = st.builds(
    AssignmentData,
    active=DATA_TASKS,
    standby=DATA_TASKS,
    warmup=DATA_TASKS,
    hosts=st.none() | HOSTS,
    followup_ms=st.none() | st.integers(0, 10**9),
    error=ERRORS,
    message=NAMES,
    draining_done=st.booleans(),
    answers=st.integers(0, 2**32 - 1),
    topology=NAMES,
    reference=st.lists(NAMES, max_size=4).map(tuple),
)


@given(USER_DATA)
def test_user_data_come_back(data: UserData) -> None:
    assert decode(encode(data)) == data


@given(ASSIGNMENTS)
def test_assignment_data_come_back(data: AssignmentData) -> None:
    assert decode_assignment(encode_assignment(data)) == data


@given(DATA_TASKS)
def test_runs_come_back(tasks: frozenset[TaskId]) -> None:
    assert tasks_of_runs(runs(tasks)) == tasks


def test_runs_are_short() -> None:
    assert (
        runs([TaskId(1, 2), TaskId(0, 3), TaskId(0, 0), TaskId(0, 1), TaskId(0, 2), TaskId(0, 7)])
        == "0:0-3,7;1:2"
    )
    assert (
        len(encode(UserData(process_id="p", owned=frozenset(TaskId(0, p) for p in range(10_000)))))
        < 60
    )


@given(st.binary(max_size=60), st.sampled_from([b"", b"ef", b"ef\x02\x02"]))
def test_other_bytes_are_an_error_for_people(noise: bytes, start: bytes) -> None:
    for read in (decode, decode_assignment):
        with pytest.raises(
            UserDataError,
            match=r"the (member's|leader's) \w+( data)? .*(not everflow's|damaged|version)",
        ):
            read(start + noise)


@given(USER_DATA, st.data())
def test_a_flipped_bit_never_goes_unnoticed(data: UserData, choice: st.DataObject) -> None:
    blob = bytearray(encode(data))
    place = choice.draw(st.integers(4, len(blob) - 1))
    blob[place] ^= 1 << choice.draw(st.integers(0, 7))
    with suppress(UserDataError):
        assert decode(bytes(blob)) == data  # a bit of zlib's own bookkeeping


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{}",
        b'{"p":1,"n":0}',
        b'{"p":"x","n":0,"o":"0:x"}',
        b'{"p":"x","n":0,"s":[[1]]}',
        b'{"p":"x","n":0,"x":99}',
    ],
)
def test_a_body_of_another_shape_is_damage(body: bytes) -> None:
    with pytest.raises(UserDataError, match="damaged"):
        decode(b"ef\x02\x02" + zlib.compress(body))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"p": "' + b"x" * (17 << 20) + b'", "n": 1}', "more than 16777216 bytes"),
        (b'{"p": "x", "n": 1, "o": "0:0-99999999999"}', "more than 1000000 tasks"),
        (b'{"p": "x", "n": 1, "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "Recursion"),
        (b'{"p": "x", "n": Infinity}', "Overflow"),
    ],
    ids=["large", "many tasks", "nested", "infinite"],
)
def test_user_data_are_bounded_before_they_are_memory(body: bytes, why: str) -> None:
    """Each member decodes the leader's, the leader each member's: a few bytes may say much."""
    blob = b"ef\x02\x02" + zlib.compress(body)
    assert len(blob) < 50_000
    tracemalloc.start()
    with pytest.raises(UserDataError, match=why):
        decode(blob)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20


def test_user_data_that_are_cut_off_are_damage() -> None:
    blob = encode(UserData(process_id="p" * 100))
    for end in range(4, len(blob)):
        with pytest.raises(UserDataError, match="damaged"):
            decode(blob[:end])


def test_a_newer_version_is_told_apart_and_names_its_writer() -> None:
    with pytest.raises(FutureVersionError, match="newer everflow") as failure:
        decode(
            encode(
                UserData(
                    process_id="p",
                    used_version=LATEST_VERSION + 1,
                    latest_version=LATEST_VERSION + 2,
                )
            )
        )
    assert (failure.value.used, failure.value.latest) == (LATEST_VERSION + 1, LATEST_VERSION + 2)
    # A newer member that writes an old version is read, whatever it adds.
    blob = (
        b"ef"
        + bytes([LATEST_VERSION, LATEST_VERSION + 1])
        + zlib.compress(b'{"p":"x","n":3,"new":[1]}')
    )
    assert decode(blob) == UserData(process_id="x", nonce=3, latest_version=LATEST_VERSION + 1)
    with pytest.raises(UserDataError, match="upgrade that instance"):
        decode(b"ef\x01\x01")


def test_a_thousand_members_with_ten_thousand_tasks_fit_the_group_s_record() -> None:
    """The broker keeps all of it in one record of at most 1 MB by default; names of topics, members
    and hosts need room too."""
    rng = random.Random(1)
    tasks = [TaskId(sub, p) for sub in range(4) for p in range(2_500)]
    dealt = rng.sample(tasks, len(tasks))
    copies = rng.sample(tasks, len(tasks))
    sizes = [0, 0]
    for number in range(1_000):
        owned, standby = frozenset(dealt[number::1_000]), frozenset(copies[number::1_000])
        data = UserData(
            process_id=f"{rng.getrandbits(128):032x}",
            owned=owned,
            generation=4711,
            threads=8,
            offset_sums={task: rng.randrange(10**8, 10**9) for task in standby - owned},
            rack=f"eu-west-{number % 3}",
            tags={"zone": f"eu-west-{number % 3}", "cluster": "k1"},
            endpoint=f"host-{number}.streams.svc:8080",
            topology=digest([str(number)]),
            nonce=rng.getrandbits(32),
        )
        answer = AssignmentData(
            active=owned, standby=standby, hosts=None, answers=data.nonce, topology=data.topology
        )
        sizes[0] += len(encode(data))
        sizes[1] += len(encode_assignment(answer))
    print(f"subscriptions {sizes[0]:,} bytes, assignments {sizes[1]:,} bytes")
    assert sum(sizes) < 450_000


def test_the_host_map_is_left_out_above_its_budget() -> None:
    hosts = {
        f"host-{n}:80": HostTasks(frozenset(TaskId(0, p) for p in range(n, 1000, 50)))
        for n in range(50)
    }
    assert hosts_within_budget(hosts, 10) is hosts
    assert hosts_within_budget(hosts, HOSTS_BUDGET_BYTES) is None


def test_the_host_map_can_be_read_from_a_description_of_the_group() -> None:
    first = AssignmentData(
        active=frozenset({TaskId(0, 1)}), standby=frozenset({TaskId(0, 2)}), hosts=None
    )
    group = [
        (encode(UserData(process_id="a", endpoint="a:1")), encode_assignment(first)),
        (encode(UserData(process_id="b")), encode_assignment(first)),
        (
            encode(UserData(process_id="c", endpoint="c:1")),
            encode_assignment(replace(first, error=AnswerError.PROCESS_ID_CLASH)),
        ),
        (b"", b""),
    ]
    assert hosts_of(group) == {"a:1": HostTasks(first.active, first.standby)}
