"""One instance, and three with one killed, give one table: part of `./run oracle instances`."""

import pytest

from oracle.instances import compare

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]


def test_instances_that_are_killed_give_the_tables_of_one() -> None:
    *_, report = compare(cases=6, seed=4)
    assert report.differing == []
    assert (report.equal, report.kills) == (6, 1)
