"""The bytes of a rebalance come back, other versions and damage are told, 1,000 members fit."""

import random
import tracemalloc
import zlib
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from everflow.records import TaskId

TASKS = st.frozensets(st.builds(TaskId, st.integers(0, 12), st.integers(0, 40)), max_size=60)
NAMES = st.text(max_size=12)
ERRORS = st.sampled_from(AnswerError)

USER_DATA = st.builds(
    UserData,
    process_id=NAMES,
    owned=TASKS,
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
HOSTS = st.dictionaries(NAMES, st.builds(HostTasks, TASKS, TASKS), max_size=4)
ASSIGNMENTS = st.builds(
    AssignmentData,
    active=TASKS,
    standby=TASKS,
    warmup=TASKS,
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


@given(TASKS)
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
