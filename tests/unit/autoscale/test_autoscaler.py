"""What an autoscaler does next, and its loop over processes that are none."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from everflow.autoscale import MOST_FAILURES, Autoscaler, InstanceSeen, change, start_instance
from everflow.errors import FatalError


class Pretended:
    """An instance that is settled at once; it says what the test wants."""

    def __init__(self, number: int, desired: dict[str, int]) -> None:
        self.number = number
        self.where = f"here:{number}"
        self.ending, self.desired = False, desired
        self.code: int | None = None

    def seen(self) -> InstanceSeen:
        return InstanceSeen(True, self.desired["now"], self.ending)

    def end(self, for_good: bool) -> None:
        self.ending, self.code, self.for_good = True, 0, for_good

    def wait(self, timeout_s: float) -> bool:
        return self.code is not None

    def kill(self) -> None:
        self.code = -9

    def tail(self) -> str:
        return "it broke"


@pytest.fixture
def desired() -> dict[str, int]:
    return {"now": 1}


@pytest.fixture
def scaler(desired: dict[str, int]) -> Autoscaler:
    def start(number: int, target: str, options: Sequence[str], folder: Path) -> Any:
        return Pretended(number, desired)

    said: list[str] = []
    made = Autoscaler(
        target="app:topology",
        options=[],
        folder=Path("there"),
        least=1,
        most=3,
        say=said.append,
        start=start,
        every_s=0.01,
    )
    made.said = said  # type: ignore[attr-defined]
    return made


def test_it_follows_and_takes_the_newest_away(scaler: Autoscaler, desired: dict[str, int]) -> None:
    counts = []
    for now in (1, 3, 3, 2, 2, 1, 1, 1):
        desired["now"] = now
        scaler.step()
        counts.append(sorted(one.number for one in scaler.instances if not one.ending))
    assert counts == [[1], [1, 2, 3], [1, 2, 3], [1, 2], [1, 2], [1], [1], [1]]


def test_a_number_is_used_again_with_its_state(scaler: Autoscaler, desired: dict[str, int]) -> None:
    for now in (2, 2, 1, 1, 2):
        desired["now"] = now
        scaler.step()
    assert [one.number for one in scaler.instances] == [1, 2]


def test_instances_that_end_by_themselves_again_and_again_end_it(scaler: Autoscaler) -> None:
    scaler.step()
    for _ in range(MOST_FAILURES - 1):
        scaler.instances[0].code = 1  # type: ignore[misc]
        scaler.step()
    scaler.instances[0].code = 1  # type: ignore[misc]
    with pytest.raises(FatalError, match=r"3 instances ended .*\n.*it broke"):
        scaler.step()


def test_the_last_words_of_an_instance_are_its_own(tmp_path: Path) -> None:
    """Its log is that of its number: what an earlier one said is no reason for this one's end."""
    (tmp_path / "instance.log").write_text("error: an earlier one\n")
    instance = start_instance(1, "no.such:program", [], tmp_path)
    assert instance.wait(60)
    assert instance.code == 2
    assert "earlier" not in instance.tail()
    assert "error: [EF-" in instance.tail()
    assert instance.log.read_text().startswith("error: an earlier one\n")


def test_at_its_end_all_end(scaler: Autoscaler, desired: dict[str, int]) -> None:
    desired["now"] = 3
    stop = threading.Event()
    runs = threading.Thread(target=scaler.run, args=(stop,))
    runs.start()
    stop.set()
    runs.join(10)
    assert not runs.is_alive()
    assert all(one.ending for one in scaler.instances)
    assert not any(one.for_good for one in scaler.instances)  # type: ignore[attr-defined]


def test_one_that_ends_over_and_over_rests(scaler: Autoscaler, desired: dict[str, int]) -> None:
    now = [1000.0]
    scaler.clock = lambda: now[0]
    desired["now"] = 2
    scaler.step()
    scaler.step()
    for _ in range(MOST_FAILURES):
        scaler.instances[-1].code = 1  # type: ignore[misc]
        scaler.step()
    assert len(scaler.instances) == 1, "the next one rests"
    now[0] += 4.0
    scaler.step()
    assert len(scaler.instances) == 1
    now[0] += 2.0
    scaler.step()
    assert len(scaler.instances) == 2
    assert "starts in 5 s" in "\n".join(scaler.said)  # type: ignore[attr-defined]


def test_a_resize_is_followed_at_the_next_look(scaler: Autoscaler, desired: dict[str, int]) -> None:
    scaler.resize(2, 2)
    scaler.step()
    assert [one.number for one in scaler.instances] == [1, 2]
    scaler.resize(1, 1)
    scaler.step()
    assert scaler.instances[-1].for_good, "others take its tasks"  # type: ignore[attr-defined]


def up(desired: int | None = 1, *, settled: bool = True, ending: bool = False) -> InstanceSeen:
    return InstanceSeen(settled, desired, ending)


@pytest.mark.parametrize(
    ("seen", "number"),
    [
        ([], 1),
        ([up(1)], 0),
        ([up(3)], 2),
        ([up(9)], 3),  # at most 4
        ([up(2), up(3)], 1),  # the largest counts
        ([up(None)], 0),
        ([up(3), up(settled=False)], 0),  # one still starts
        ([up(1), up(1), up(1)], -1),  # down by one
        ([up(1), up(1), up(1, ending=True)], 0),  # one still ends
        ([up(1), up(1, settled=False)], 0),
        ([up()] * 5, -1),
        ([up(ending=True)], 1),  # the last one ends: one is needed
    ],
)
def test_a_change(seen: list[InstanceSeen], number: int) -> None:
    assert change(seen, 1, 4) == number


def test_there_are_never_fewer_than_the_least() -> None:
    assert change([up(1)], 2, 4) == 1
    assert change([up(1), up(1)], 2, 4) == 0
