"""What a soak goes by, and a minute and a half of it."""

import random
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from soak.flatness import trend
from soak.plot import drawing
from soak.program import PERIOD, SIZES, expected, symbol_of, total, trade
from soak.run import Plan, soak
from soak.samples import FIGURES

TIMES = [10.0 * number for number in range(360)]


def noisy(level: float, per_hour: float, spread: float, peaks: float = 0.0) -> list[float]:
    chance = random.Random(3)
    return [
        level
        + per_hour * at / 3_600
        + chance.gauss(0.0, spread)
        + (peaks if number % 6 == 0 else 0.0)
        for number, at in enumerate(TIMES)
    ]


@pytest.mark.parametrize(
    ("per_hour", "flat"), [(0.0, True), (-40.0, True), (2.0, True), (40.0, False), (12.0, False)]
)
def test_what_grows_beyond_its_noise_is_seen(per_hour: float, flat: bool) -> None:
    found = trend(TIMES, noisy(200.0, per_hour, 1.0))
    assert found.flat == flat
    assert found.per_hour == pytest.approx(per_hour, abs=1.0)


def test_peaks_of_rebalances_move_no_trend() -> None:
    found = trend(TIMES, noisy(200.0, 0.0, 1.0, peaks=80.0))
    assert found.flat
    assert abs(found.per_hour) < 2.0
    assert trend(TIMES, [7.0] * len(TIMES)).flat
    assert not trend(TIMES, [100.0 + number / 10 for number in range(len(TIMES))]).flat


def test_two_samples_tell_nothing() -> None:
    with pytest.raises(ValueError, match="run for longer"):
        trend([0.0, 1.0], [1.0, 2.0])


@pytest.mark.parametrize("records", [0, 1, 777, PERIOD, PERIOD + 12_345])
def test_what_has_to_come_follows_from_how_many_were_sent(records: int) -> None:
    import orjson

    due = np.zeros_like(expected(0))
    for number in range(records):
        _, value = trade(number % PERIOD)
        read = orjson.loads(value)
        if read["size"] > 0:
            due[symbol_of(number)] += (1, read["price"] * read["size"])
    assert (expected(records) == due).all()
    assert due[:, 0].sum() == records - sum(number % SIZES == 0 for number in range(records))
    assert total({"trades": 3, "turnover": 70}) == "3 70"


def test_the_drawing_has_a_panel_for_each_figure() -> None:
    values = noisy(200.0, 0.0, 1.0)
    seen = trend(TIMES, values)
    panels = [("memory of the <jvm>", "MiB", values, seen), ("threads", "threads", values, seen)]
    root = ElementTree.fromstring(drawing("a soak", TIMES, panels, [60.0, 120.0]))
    lines = [one for one in root.iter() if one.tag.endswith("polyline")]
    assert [len(line.attrib["points"].split()) for line in lines] == [len(TIMES)] * 2
    words = [one.text for one in root.iter() if one.tag.endswith("text")]
    assert any(word and word.startswith("memory of the <jvm>, MiB: 200") for word in words)


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.slow
def test_every_result_is_right_while_an_instance_comes_and_goes(tmp_path: Path) -> None:
    report = soak(Plan(minutes=1.5, rate=2_000.0, every=20.0), tmp_path)
    assert [text for text in report.wrong if " grew by " not in text] == []
    assert report.sent > 50_000
    assert report.results > 200
    assert len(report.rebalances_s) >= 2
    assert set(report.trends) == set(FIGURES)
    assert all(one.values["memory of the jvm"] > 100 for one in report.samples)
    assert report.samples[-1].values["stores on disk"] > 0
