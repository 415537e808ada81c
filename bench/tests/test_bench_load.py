"""The pure parts of `bench load` and `bench report`: order, paces, figures of /proc and cgroups,
tables, pages."""

import itertools
import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import report
from bench.limits import CannotMeasureError, Hold, held_to, killed_for_memory, own_group
from bench.load import neighbour
from bench.load.picture import drawing
from bench.load.plan import LoadPlan, Pace, is_warm, paces, turns
from bench.load.table import table
from bench.memory import compiler_processor_s, memory_parts_mib, thread_use
from bench.results import Results, Row, write_json
from bench.run import command_of, main
from bench.systems import Job, Launch, kafka_streams_launcher

ONCE = "exactly_once_v2"


def row(
    case: str, system: str, metric: str, value: float, note: str = "", bench: str = "load"
) -> Row:
    unit = "ms" if metric.startswith("latency") else ""
    return Row(bench, case, system, ONCE, metric, value, unit, (value,), note)


def test_systems_come_in_turn_over_paces_and_rounds() -> None:
    plan = LoadPlan(ONCE, ["trades"], paces([1000, 100], None), rounds=2)
    assert [(turn.round, turn.pace.label, turn.system) for turn in turns(plan, ["a", "b"])] == [
        (0, "100", "a"),
        (0, "100", "b"),
        (0, "1000", "b"),
        (0, "1000", "a"),
        (1, "100", "b"),
        (1, "100", "a"),
        (1, "1000", "a"),
        (1, "1000", "b"),
    ]


def test_paces_are_the_usual_ones_or_those_asked_for() -> None:
    usual = ["100", "1000", *(f"{share} of the ceiling" for share in ("1/4", "1/2", "3/4"))]
    assert [pace.label for pace in paces(None, None)] == usual
    assert [pace.label for pace in paces(None, [Fraction("0.5")])] == ["1/2 of the ceiling"]
    assert [pace.records_per_s(20_000) for pace in paces([7], [Fraction(3, 4)])] == [7, 15_000]
    assert Pace(share=Fraction(1, 4)).records_per_s(1) == 1


def test_a_setting_names_all_that_is_not_usual() -> None:
    plan = LoadPlan(ONCE, [], (), cores=0.5, neighbour=True)
    assert plan.setting("trades", 4) == "trades, held to 0.5 core, beside a neighbour"
    assert LoadPlan(ONCE, [], ()).setting("trades", 16) == "trades, 16 partitions"


@pytest.mark.parametrize(
    ("transactions", "share", "warm"),
    [
        (2_999, 0.0, False),
        (3_000, 0.0, True),
        (3_000, None, True),
        (3_000, 0.5, False),
        (14_999, 0.5, False),
        (15_000, 0.5, True),
    ],
)
def test_a_broker_is_warm_once_its_compiler_rests(
    transactions: int, share: float | None, warm: bool
) -> None:
    assert is_warm(transactions, share, 3_000) is warm


def test_a_threads_name_may_hold_blanks_and_brackets() -> None:
    rest = " S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1"
    assert thread_use(f"17 (C2 CompilerThre){rest}", 100.0) == ("C2 CompilerThre", 3.0)
    assert thread_use(f"17 (a) (b c){rest}", 100.0) == ("a) (b c", 3.0)


def test_a_process_without_a_jvm_has_no_compiler() -> None:
    assert compiler_processor_s(os.getpid()) == 0.0


@pytest.mark.parametrize(
    ("controller", "group"), [("cpu", "/a"), ("memory", "/b/c"), ("pids", "/")]
)
def test_a_controllers_own_group_is_read(controller: str, group: str) -> None:
    assert own_group("4:memory:/b/c\n1:cpu,cpuacct:/a\n0::/d\n", controller) == group


def test_half_a_core_is_half_of_the_time() -> None:
    """User and system time of a loop of a second."""
    script = (
        "import time, os; end = time.monotonic() + 1\n"
        "while time.monotonic() < end: pass\n"
        "print(sum(os.times()[:2]))"
    )
    try:
        with held_to(0.5) as hold:
            launch = hold.applied(Launch([sys.executable, "-c", script]))
            done = subprocess.run(
                launch.command, capture_output=True, text=True, timeout=60, check=True
            )
    except CannotMeasureError as refused:
        pytest.skip(str(refused))
    assert "cgroup" in hold.by
    # One period of 0.1 s more than its share at most, and the start of Python.
    assert 0.0 < float(done.stdout) < 0.75


def test_without_cgroups_one_core_is_held_by_taskset() -> None:
    assert Hold("taskset").applied(Launch(["x", "y"])).command == ["taskset", "-c", "0", "x", "y"]


def test_a_neighbour_takes_half_of_the_time_and_the_same_each_time() -> None:
    drawn = list(itertools.islice(neighbour.bursts(1), 2_000))
    assert drawn == list(itertools.islice(neighbour.bursts(1), 2_000))
    assert 0.45 < sum(drawn[::2]) / sum(drawn) < 0.55


def test_transactional_stores_are_a_setting_of_kafka_streams(tmp_path: Path) -> None:
    job = Job("server:1", "app", ONCE, 2, "in", "out", tmp_path, settings={"a.b": "c"})
    command = kafka_streams_launcher(["java"], "kafka-streams-kip1071-transactional")(job).command
    given = dict(zip(command[1::2], command[2::2], strict=True))
    assert given["--set.group.protocol"] == "streams"
    assert given["--set.enable.transactional.statestores"] == "true"
    assert given["--set.a.b"] == "c"
    plain = kafka_streams_launcher(["java"])(job).command
    assert "--set.enable.transactional.statestores" not in plain


CASE = "trades at 1000"
BEHIND = "fell behind: latencies are lower bounds"
ROWS = [
    row("machine", "machine", "loop", 140.0),
    row("trades", "kafka-streams", "ceiling", 20_000.0),
    row(CASE, "kafka-streams", "latency_p50", 200.0),
    row(CASE, "kafka-streams", "latency_p99", 400.0),
    row(CASE, "kafka-streams", "processor", 0.4),
    row(CASE, "kafka-streams", "sent", 1_000.0),
    row(CASE, "everflow", "latency_p50", 100.0, BEHIND),
    row(CASE, "everflow", "latency_p99", 600.0, BEHIND),
    row(CASE, "everflow", "processor", 1.0, BEHIND),
    row(CASE, "everflow", "sent", 1_000.0, BEHIND),
    row("trades at 1/4 of the ceiling", "everflow", "latency_p99", 80.0),
]


def test_a_table_has_ratios_and_what_everflow_loses() -> None:
    head, streams, ours, alone = table(ROWS)
    assert head[:5] == ("case", "records/s", "system", "p50 ms", "p99 ms")
    assert streams == (CASE, "1,000", "kafka-streams", "200.0", "400.0", "0.40", "", "", "", "")
    assert ours[3:6] == ("> 100.0 (0.50)", "> 600.0 (1.50)", "1.00 (2.50)")
    assert ours[-1] == "p99 ms 1.50, cores 2.50"
    assert alone[4] == "80.0"


def done(rows: list[Row], date: str = "2026-11-30", command: str = "./run bench load") -> Results:
    machine: dict[str, str | float] = {"cores": 2, "architecture": "x86_64", "loop_ms": 140.0}
    return Results(command, date, machine, {"kafka": "4.4.0"}, rows)


def test_a_picture_has_a_line_for_each_system_and_a_ring_where_one_fell_behind() -> None:
    root = ElementTree.fromstring(drawing(done(ROWS)))
    names = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert names.count("polyline") == 4
    rings = [one for one in root.iter() if one.get("fill") == "#ffffff" and one.get("r")]
    assert len(rings) == 2


PAGE = """Text.
<!-- begin load -->
Old, of 2026-11-01.
<!-- end load -->
More.
<!-- begin neighbour -->
As it was.
<!-- end neighbour -->
<!-- begin count -->
Counts of 2026-11-22.
<!-- end count -->
"""


def written(folder: Path, name: str, results: Results) -> None:
    write_json(results, folder / f"{name}.json")


def test_a_page_is_made_of_the_newest_results_and_keeps_what_has_none(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    old = done([row(CASE, "everflow", "latency_p50", 7.0)], "2026-11-29")
    written(tmp_path, "2026-11-29-load", old)
    written(tmp_path, "2026-11-30-load", done(ROWS))
    half = done(ROWS[2:], command="./run bench load --cores 0.5")
    written(tmp_path, "2026-11-30-load-half-a-core", half)
    # One of the two that the counts need.
    counts = [row("count", "everflow", "throughput", 9.0, bench="throughput")]
    written(tmp_path, "2026-11-30-throughput", done(counts))
    assert sorted(report.write(tmp_path, page, tmp_path)) == [
        "load-half-a-core.svg",
        "load.svg",
        "page.md",
    ]
    text = page.read_text()
    assert text.startswith("Text.\n<!-- begin load -->\n`./run bench load` on 2026-11-30: 2 cores")
    assert "loop takes 140.0 ms; kafka 4.4.0." in text
    assert "`./run bench load --cores 0.5` on 2026-11-30" in text
    assert f"| {CASE} | 1,000 | everflow | > 100.0 (0.50) |" in text
    assert "7.0" not in text.replace("10.0.7.0", "")
    assert "As it was." in text
    assert "Counts of 2026-11-22." in text
    assert report.write(tmp_path, page, tmp_path) == [], "made once, nothing is left to make"


def test_other_benches_have_a_column_for_each_system() -> None:
    rows = [
        row("trades", "kafka-streams", "throughput", 50.0),
        row("trades", "everflow", "throughput", 200.0, "a bound"),
        row("flights", "everflow", "throughput", 3.0),
    ]
    assert report.plain_table(rows) == [
        ("case", "guarantee", "figure", "everflow", "kafka-streams", "everflow / kafka-streams"),
        ("trades", ONCE, "throughput, ", "200.0*", "50.0", "4.00"),
        ("flights", ONCE, "throughput, ", "3.00", "", ""),
        ("*", "", "a bound", "", "", ""),
    ]


@pytest.mark.parametrize(
    ("name", "beginning"),
    [
        ("load", "load"),
        ("load-half-a-core", "load"),
        ("load-neighbour", "load-neighbour"),
        ("load-neighbour-16", "load-neighbour"),
        ("loads", None),
        ("nothing", None),
    ],
)
def test_a_file_is_of_the_part_with_the_longest_beginning(name: str, beginning: str | None) -> None:
    assert report.beginning(name) == beginning


@pytest.mark.parametrize("name", ["load", "2026-11-29-load", "2026-11-30-nothing"])
def test_a_file_is_named_by_its_date_and_a_part(tmp_path: Path, name: str) -> None:
    written(tmp_path, name, done(ROWS))
    with pytest.raises(ValueError, match=name):
        report.newest(tmp_path)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "2026-11-30-load.json").write_text(json.dumps([1]))
    with pytest.raises(ValueError, match="2026-11-30-load"):
        report.newest(tmp_path)


def test_the_page_is_that_of_the_committed_results() -> None:
    found = report.newest(report.RESULTS)
    page = report.PAGE.read_text()
    assert report.made(page, found) == page, "run `./run bench report`"
    for one in filter(report.is_load, found):
        picture = report.PICTURES / f"{one.name}.svg"
        assert picture.read_text() == drawing(one.results), "run `./run bench report`"
    for part in report.PARTS:
        assert page.count(f"<!-- begin {part} -->\n") == 1


def test_a_command_is_told_without_its_file() -> None:
    assert command_of(["load", "--json", "a b", "--rates", "1,2"]) == "./run bench load --rates 1,2"


@pytest.mark.parametrize(
    "arguments",
    [
        ["load", "--programs", "final"],
        ["load", "--systems", "everflow"],
        ["load", "--shares", "0"],
        ["load", "--ceiling", "nothing=1"],
        ["programs", "--measure", "latency"],
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("memory.events", "low 0\noom 2\noom_kill 1\n"),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
    ],
)
def test_processes_that_the_kernel_has_ended_are_counted(
    tmp_path: Path, file: str, text: str
) -> None:
    assert killed_for_memory(tmp_path) == 0
    (tmp_path / file).write_text(text)
    assert killed_for_memory(tmp_path) == 1


def test_memory_is_told_by_kind_of_process() -> None:
    parts = memory_parts_mib(os.getpid())
    assert {"driver", "private"} <= parts.keys()
    assert 0 < parts["private"] <= sum(parts.values()) - parts["private"]
