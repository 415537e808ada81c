"""A slice of `./run chaos sources`: one of two instances is killed; each row is there once."""

import pytest

from chaos.sources import Counted, run
from chaos.sources_instance import FILES_TOPIC, TABLE_TOPIC

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1_500)]


@pytest.mark.slow
def test_files_and_a_table_come_once() -> None:
    report = run(files=2_000, rows=1_000_000)
    assert report.clean, report
    assert report.killed_at
    assert report.lost == {FILES_TOPIC: 0, TABLE_TOPIC: 0}


def test_the_books_see_what_is_lost_doubled_or_strange() -> None:
    counted = Counted("t", 4)
    counted.add([n.to_bytes(8, "big", signed=True) for n in (0, 2, 2, 3, 9, -1)])
    assert (counted.rows, counted.lost, counted.doubled) == (4, 1, 3)
