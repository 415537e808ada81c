"""The pure parts of `bench growth`: inputs, what must come out of them, the pages of a commit, the
memory of a group; and that what a micro-batch reads does not grow with the state."""

import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bench.apps import count_app
from bench.apps.topic_names import INPUT_TOPIC_VARIABLE, OUTPUT_TOPIC_VARIABLE
from bench.growth import pages
from bench.growth.cases import GrowthPlan, latency_cases, throughput_cases
from bench.growth.inputs import LATEST, Input, check
from bench.growth.state import Cost, cost_in_memory, cost_on_disk, growth
from bench.growth.state_programs import PROGRAMS as OF_STATE
from bench.growth.state_programs import StateProgram
from bench.limits import CannotMeasureError, limited, memory_group
from bench.load import latency_sender
from bench.programs import topologies
from bench.systems import COUNT, Launch
from bench.verify import WrongOutputError
from everflow import StreamsBuilder, serdes
from everflow.testing import TopologyTestDriver

Rows = list[tuple[bytes, bytes]]


def outputs(made: Input) -> Rows:
    """Every change, as a system without a cache writes it."""
    counts: dict[bytes, int] = {}

    def changes() -> Iterator[tuple[bytes, bytes]]:
        for key, value in (*made.fill(), *made.updates()):
            counts[key] = counts.get(key, 0) + 1
            yield key, value if made.program == LATEST else struct.pack(">q", counts[key])

    return list(changes())


@pytest.mark.parametrize("program", [COUNT, LATEST])
@pytest.mark.parametrize("keys", [1, 7, 300])
def test_what_comes_out_of_the_input_is_as_it_must_be(program: str, keys: int) -> None:
    made = Input(program, keys=keys, records=500, value_bytes=20)
    assert len({key for key, _ in made.fill()}) == keys
    assert all(len(value) == 20 for _, value in made.updates())
    check(made, outputs(made), "here")


@pytest.mark.parametrize("program", [COUNT, LATEST])
@pytest.mark.parametrize("damage", ["lost", "twice", "late", "wrong value"])
def test_an_output_that_is_not_voids_the_figures(program: str, damage: str) -> None:
    made = Input(program, keys=7, records=50, value_bytes=20)
    rows = outputs(made)
    if damage == "lost":
        rows.pop()
    elif damage == "twice":
        rows.append(rows[-1])
    elif damage == "late":
        rows.insert(0, rows.pop())
    else:
        rows[-1] = (rows[-1][0], struct.pack(">q", 999) if program == COUNT else b"x" * 20)
    with pytest.raises((WrongOutputError, ValueError)):
        check(made, rows, "here")


@pytest.mark.parametrize(
    ("program", "build"), [(COUNT, count_app.builder), (LATEST, topologies.latest)]
)
def test_the_programs_do_what_is_checked(
    program: str, build: Callable[[], StreamsBuilder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INPUT_TOPIC_VARIABLE, "in")
    monkeypatch.setenv(OUTPUT_TOPIC_VARIABLE, "out")
    made = Input(program, keys=7, records=50, value_bytes=20)
    raw = serdes.bytes_()
    with TopologyTestDriver(build().build()) as driver:
        source = driver.create_input_topic("in", raw, raw)
        source.pipe_batch(made.fill())
        source.pipe_batch(made.updates())
        check(made, driver.create_output_topic("out", raw, raw).read_key_values(), "here")


def test_one_dimension_grows_at_a_time() -> None:
    plan = GrowthPlan("exactly_once_v2", keys=(10, 20), partitions=(3,), sizes=(100, 100_000))
    cases = {case.name: case for case in throughput_cases(plan)}
    assert list(cases) == [
        "10 keys",
        "20 keys",
        "3 partitions",
        "records of 100 bytes",
        "records of 100,000 bytes",
        "state of 4,096 MiB, no limit",
        "state of 4,096 MiB, in 2,048 MiB",
    ]
    assert cases["20 keys"].partitions == 4
    assert cases["3 partitions"].made.keys == 100_000
    large = cases["records of 100,000 bytes"].made
    assert large.records * large.value_bytes <= 512 << 20
    assert cases["state of 4,096 MiB, in 2,048 MiB"].limit_bytes == 2 << 30
    assert list(latency_cases(plan)) == [
        ("10 keys", 10, 4),
        ("20 keys", 20, 4),
        ("3 partitions", 100_000, 3),
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="counted with Linux' /proc")
def test_a_commit_writes_the_pages_of_what_changes_not_of_what_is_held() -> None:
    """Ten keys are ten leaves at most, and a few pages above them and for the metadata."""
    rows = {
        (figure.case, figure.metric): figure.value
        for figure in pages.measure(keys=[1_000, 20_000], changed=[1, 10])
    }
    for held in ("1,000", "20,000"):
        one = rows[f"{held} keys, 1 changed", "pages_per_commit"]
        ten = rows[f"{held} keys, 10 changed", "pages_per_commit"]
        assert 3 <= one <= 12
        assert one < ten <= one + 2 * 9


def test_a_limited_system_has_no_more_memory_than_its_group() -> None:
    """It is itself, not a shell, that runs in the group."""
    script = "import os; print(os.getpid(), flush=True); bytearray(256 << 20)"
    try:
        with memory_group(64 << 20) as group:
            launch = limited(Launch([sys.executable, "-c", script]), group)
            with subprocess.Popen(launch.command, stdout=subprocess.PIPE, text=True) as child:
                said, _ = child.communicate(timeout=60)
    except CannotMeasureError as refused:
        pytest.skip(str(refused))
    assert int(said) == child.pid
    assert child.returncode == -9
    assert not group.exists()


def test_a_sender_waits_where_brokers_take_no_more() -> None:
    """A state of ten million keys is sent faster than they do."""

    class Full:
        waited = 0

        def produce(self, *_: object, **__: object) -> None:
            if self.waited < 2:
                raise BufferError("Local: Queue full")

        def poll(self, _: float) -> None:
            self.waited += 1

    producer: Any = Full()
    before = time.monotonic_ns()
    sent_ns = latency_sender._produced(producer, "topic", b"k", b"v", 0)
    assert producer.waited == 2
    assert before <= sent_ns <= time.monotonic_ns(), "of the attempt that went through"


FEW = 40
MANY = 400


@pytest.mark.parametrize("program", OF_STATE, ids=[program.name for program in OF_STATE])
def test_a_batch_reads_as_much_beside_a_tenfold_state(program: StateProgram) -> None:
    for own in program.owners:
        few, many = (cost_in_memory(program, count, own, 1).entries for count in (FEW, MANY))
        assert few == many, "of its own key" if own else "of others"


def test_reads_are_counted_on_disk_as_in_memory() -> None:
    (late,) = (one for one in OF_STATE if one.name == "sessions, late")
    on_disk, in_memory = (
        cost(late, FEW, True, 1).entries for cost in (cost_on_disk, cost_in_memory)
    )
    assert on_disk == in_memory > 0


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (Cost(0.010, 10), Cost(0.012, 12), 0),
        (Cost(0.010, 10), Cost(0.010, 100), 1),
        (Cost(0.010, 10), Cost(0.030, 10), 1),
        (Cost(0.001, 0), Cost(0.004, 0), 0),
    ],
)
def test_what_grows_is_told(before: Cost, after: Cost, told: int) -> None:
    assert len(list(growth("a program", [10, 100], [before, after]))) == told
