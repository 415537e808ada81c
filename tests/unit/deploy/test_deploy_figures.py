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

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
NAMES = {figure.name: figure for figure in FIGURES}
USED = re.compile(r"\b(?:kafka_|everflow_)\w+")
MADE_BY_PROMETHEUS = {"namespace", "pod", "statefulset", "instance", "job"}


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
    assert set(used) <= set(NAMES), where
    labels = {label for name in used for label in ("client_id", *NAMES[name].labels)}
    for inside in re.findall(r"by \(([^)]*)\)", expression):
        assert set(filter(None, map(str.strip, inside.split(",")))) <= labels, where
    for matched in re.findall(r"(\w+)\s*(?:=~|!=|=)\s*\"", expression):
        assert matched in labels, where
    assert expression.count("(") == expression.count(")"), where
    for name in used:
        counts = NAMES[name].kind == "counter"
        rated = re.search(rf"(?:rate|increase)\({name}\b", expression)
        assert bool(rated) is counts, f"{where}: {name} is a {NAMES[name].kind}"


def test_alerts_say_what_to_do() -> None:
    for rule in alerts():
        assert set(rule) >= {"alert", "expr", "labels", "annotations"}
        assert set(rule["annotations"]) == {"summary", "runbook"}  # type: ignore[call-overload]


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
