"""A minute and a half of the soak: the results are right; whether anything grows takes longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.run import Plan, soak
from soak.samples import FIGURES

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]


def test_every_result_is_right_while_an_instance_comes_and_goes(tmp_path: Path) -> None:
    report = soak(Plan(minutes=1.5, rate=2_000.0, every=20.0), tmp_path)
    assert [text for text in report.wrong if " grew by " not in text] == []
    assert report.sent > 50_000
    assert report.results > 200
    assert len(report.rebalances_s) >= 2
    assert set(report.trends) == set(FIGURES)
    assert all(one.values["memory of the jvm"] > 100 for one in report.samples)
    assert report.samples[-1].values["stores on disk"] > 0
