"""What `everflow check` says, and what a restart does: part of `./run oracle check`."""

import pytest

from oracle.checks import compare

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.mark.parametrize("cases", [2, pytest.param(24, marks=pytest.mark.slow)])
def test_the_check_agrees_with_restarts(cases: int) -> None:
    *_, report = compare(cases=cases, seed=4)
    assert report.differing == []
    assert report.equal == cases
    assert report.compared > cases
