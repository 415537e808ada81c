"""``print_table``: what is printed of a batch, how often, and how much is left out."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, TimeWindows, TopologyError, serdes
from everflow.instance.thread.batch_counts import HEAD_EVERY, TablePrinter, TableText
from everflow.protocol.messages import Printed
from everflow.testing import TopologyTestDriver, wait_until
from everflow.worker.functions import cell

TEXT, LONG = serdes.string(), serdes.long()
ORDER = serdes.json("item string, amount double")


def printed(*rows: str, most: int = 3, left_out: int = 0) -> Printed:
    return Printed("t", ["key", "value"], [[row, "1"] for row in rows], most, left_out)


def test_rows_stand_under_each_other_and_the_head_comes_again() -> None:
    text = TableText()
    assert text.lines(printed("a", "bcdef", left_out=1_200)) == [
        "--- t",
        "key    value",
        "a      1",
        "bcdef  1",
        "... and 1,200 more",
    ]
    assert text.lines(printed("x")) == ["x      1"]
    assert text.lines(printed("longer-one"))[:2] == ["--- t", "key         value"]
    for _ in range(HEAD_EVERY - 1):
        assert text.lines(printed("x")) == ["x           1"]
    assert text.lines(printed("x"))[0] == "--- t"
    assert text.lines(printed("x")._replace(title="u"))[0] == "--- u"


def test_what_comes_between_two_looks_is_bounded() -> None:
    written: list[str] = []
    printer = TablePrinter(written.append)
    printer.add([printed("a", "b"), printed("c", "d", left_out=5)])
    printer.flush()
    wait_until(lambda: written, 10, "the rows")
    assert "".join(written).splitlines()[2:] == ["a    1", "b    1", "c    1", "... and 6 more"]


def test_whoever_adds_never_waits_for_who_prints() -> None:
    import threading

    may_write, written = threading.Event(), list[str]()

    def slowly(text: str) -> None:
        may_write.wait(30)
        written.append(text)

    printer = TablePrinter(slowly)
    for at in range(1_000):
        printer.add([printed(f"{at}", most=5)])
    may_write.set()

    def told() -> int:
        lines = [line for text in written for line in text.splitlines()]
        more = sum(int(line.split()[2].replace(",", "")) for line in lines if "more" in line)
        return more + sum(line.endswith("  1") for line in lines)

    wait_until(lambda: told() == 1_000, 20, "all rows to be printed or counted", history=written)
    assert sum(text.count("\n") for text in written) < 60


@pytest.mark.parametrize(
    ("value", "text"), [(None, "null"), ("a\nb", "a\\nb"), ("x" * 80, "x" * 57 + "...")]
)
def test_cells_are_one_line(value: Any, text: str) -> None:
    assert cell(value) == text


@pytest.mark.spark
def test_a_program_prints_its_streams_and_tables(capsys: pytest.CaptureFixture[str]) -> None:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=TEXT, value=ORDER)
    orders.filter(F.col("value.amount") > 1).print_table("orders", rows=2)
    hours = orders.group_by_key().windowed_by(TimeWindows.of_size("1 hour"))
    hours.count(store="n").map_values(F.col("value") * 2).print_table()
    assert "KSTREAM-PRINTER-" in builder.build().describe()
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("orders", TEXT, ORDER)
        topic.pipe_batch([("ann", {"item": "tea", "amount": float(at)}, at) for at in range(5)])
    assert capsys.readouterr().out.splitlines() == [
        "--- orders",
        "time                     key  item  amount",
        "1970-01-01 00:00:00.002  ann  tea   2.0",
        "1970-01-01 00:00:00.003  ann  tea   3.0",
        "... and 1 more",
        "--- KTABLE-TOSTREAM-0000000005",
        "time                     key.key  key.start  key.end  value",
        "1970-01-01 00:00:00.004  ann      0          3600000  10",
    ]


@pytest.mark.spark
@pytest.mark.parametrize("options", [{"rows": 0}, {"rows": "5"}, {"rows": 1_001}, {"title": 3}])
def test_what_cannot_be_printed_is_refused(options: dict[str, Any]) -> None:
    stream = StreamsBuilder().stream("s", key=TEXT, value=LONG)
    with pytest.raises(TopologyError, match=r"print_table: (rows|title) is"):
        stream.print_table(**options)
