"""What the connect bench makes of what it sees, and its simulated groups on little."""

import json
from pathlib import Path
from xml.etree import ElementTree

from bench import run
from bench.connect.groups import GroupPlan
from bench.connect.measure import Course
from bench.connect.outputs import TaskOutput, cost_of, per_second
from bench.connect.plot import drawing
from bench.connect.simulated import (
    ADDED,
    BOUNCE,
    COOPERATIVE,
    DELAYED,
    DRAINED,
    EAGER,
    LOST,
)


def output(*records: tuple[float, str]) -> TaskOutput:
    task = TaskOutput()
    for at_s, owner in records:
        task.add(at_s, owner)
    return task


def test_a_stop_is_a_time_without_a_record_as_far_as_it_lies_in_the_event() -> None:
    task = output((0.0, "a"), (1.0, "a"), (6.0, "b"), (7.0, "b"))
    assert task.stops(2.0, 8.0) == [4.0]
    assert task.stops(0.0, 4.0) == [3.0]
    assert task.stops(6.5, 7.5) == []
    assert output().stops(1.0, 9.0) == [8.0]
    assert (task.moves(0.0, 8.0), task.moves(6.5, 8.0)) == (1, 0)
    assert (task.owner_at(-1.0), task.owner_at(5.0), task.owner_at(6.0)) == ("", "a", "b")


def test_only_a_task_that_nothing_happened_to_counts_as_one_that_stays() -> None:
    moved = output((0.0, "a"), (1.0, "a"), (9.0, "b"))
    hit = output((0.0, "a"), (1.0, "a"), (8.0, "a"), (9.0, "a"))
    stays = output((0.0, "b"), (1.0, "b"), (4.0, "b"), (6.0, "b"), (8.0, "b"), (9.0, "b"))
    cost = cost_of([moved, hit, stays], ["a"], 0.5, 9.5, before=3.0)
    assert (cost.lost_s, cost.moved, cost.stayed_s) == (8.0 + 7.0 + 3.0, 1, 3.0)
    assert cost.worst_share == 0.0


def test_records_are_counted_in_whole_seconds() -> None:
    assert per_second([9.9, 10.0, 10.9, 11.5, 13.0], 10.0, 12.9) == [(0.0, 2), (1.0, 1)]


def test_the_plot_has_a_line_for_each_course() -> None:
    seconds = [(float(second), 10 * second) for second in range(30)]
    courses = [
        Course("everflow", COOPERATIVE, BOUNCE, seconds),
        Course("kafka-connect", EAGER, BOUNCE, seconds),
        Course("everflow", COOPERATIVE, ADDED, seconds),
    ]
    picture = ElementTree.fromstring(drawing(GroupPlan(), courses))
    assert len(picture.findall(".//{*}polyline")) == 3


def test_simulated_groups_give_a_row_for_each_event_and_mode(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    arguments = ["connect", "--members", "3", "--connectors", "3", "--json", str(file)]
    assert run.main(arguments) == 0
    rows = {
        (row["case"], row["metric"]): row["value"] for row in json.loads(file.read_text())["rows"]
    }
    case = "3 members, 3 x 4 tasks, "
    assert rows[f"{case}{LOST}, {DELAYED}", "tasks_moved"] == 0
    assert rows[f"{case}{LOST}, {EAGER}", "tasks_moved"] == 8
    assert rows[f"{case}{BOUNCE}, {DRAINED}", "longest_stop_staying"] == 0
    assert rows[f"{case}{ADDED}, {COOPERATIVE}", "task_seconds_lost"] == 0
    assert len({name for name, _ in rows}) == 10
