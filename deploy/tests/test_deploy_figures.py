"""What lies in deploy/ names figures that there are, and is made as it says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import grafana_dashboard
from everflow.observe.figures import FIGURES

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
NAMES = {figure.name: figure for figure in FIGURES}
USED = re.compile(r"\b(?:kafka_|everflow_)\w+|\bup\b(?={)")
MADE_BY_PROMETHEUS = {"up"}
"""What Prometheus says of a scrape by itself."""
SCRAPED = {"instance", "job"}
"""Labels that it gives to what it scrapes."""
NEEDED = {
    "up": "an instance that has ended with an error takes its /metrics with it",
    "absent(kafka_streams_stream_metrics_client_state{": "nobody is scraped any more",
    "everflow_brokers_silent_seconds": "the lag is NaN while brokers are away",
    "everflow_task_troubled": "one task of several stands still",
}


def alerts() -> list[dict[str, object]]:
    (group,) = yaml.safe_load((DEPLOY / "helm/everflow/alerts.yaml").read_text())["groups"]
    rules: list[dict[str, object]] = group["rules"]
    return rules


def expressions() -> Iterator[tuple[str, str]]:
    for rule in alerts():
        yield str(rule["alert"]), str(rule["expr"])
    for panel in json.loads(grafana_dashboard.FILE.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_expressions_name_figures_and_labels_that_there_are(where: str, expression: str) -> None:
    used = USED.findall(expression)
    assert used, where
    assert set(used) <= set(NAMES) | MADE_BY_PROMETHEUS, where
    figures = [NAMES[name] for name in used if name in NAMES]
    labels = {label for figure in figures for label in ("client_id", *figure.labels)}
    for inside in re.findall(r"by \(([^)]*)\)", expression):
        assert set(filter(None, map(str.strip, inside.split(",")))) <= labels, where
    for matched in re.findall(r"(\w+)\s*(?:=~|!=|=)\s*\"", expression):
        assert matched in labels | SCRAPED, where
    assert expression.count("(") == expression.count(")"), where
    for figure in figures:
        counts = figure.kind == "counter"
        rated = re.search(rf"(?:rate|increase)\({figure.name}\b", expression)
        assert bool(rated) is counts, f"{where}: {figure.name} is a {figure.kind}"


def test_alerts_say_what_to_do() -> None:
    for rule in alerts():
        assert set(rule) >= {"alert", "expr", "labels", "annotations"}
        assert set(rule["annotations"]) == {"summary", "runbook"}  # type: ignore[call-overload]


def test_an_outage_and_an_instance_that_is_gone_raise_an_alert() -> None:
    critical = [
        str(rule["expr"])
        for rule in alerts()
        if rule["labels"]["severity"] == "critical"  # type: ignore[index]
    ]
    for needed, why in NEEDED.items():
        assert any(
            re.match(rf"(\w+ by \(.*?\) \()?{re.escape(needed)}", one) for one in critical
        ), why


def test_alerts_are_of_one_application() -> None:
    """Each release installs them: without a job all would tell of all."""
    for rule in alerts():
        expression = str(rule["expr"])
        series = re.findall(r"\b(?:(?:kafka_|everflow_)\w+|up\b)(?:{(.*?)})?", expression)
        assert series, rule["alert"]
        for labels in series:
            assert re.findall(r"job=~?(\S+?)(?:,|$)", labels) == ['"everflow"'], rule["alert"]


def test_the_dashboard_is_made_of_its_program() -> None:
    assert grafana_dashboard.FILE.read_text() == grafana_dashboard.text(), (
        "run .venv/bin/python tests/grafana_dashboard.py"
    )


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in grafana_dashboard.dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
