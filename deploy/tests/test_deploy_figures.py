"""Alerts and dashboards name figures that there are, and are what Prometheus' own tool checks and
tests. promtool is in Debian's package `prometheus`; where it is missing its tests are skipped."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import grafana_dashboard
from everflow.observe.figures import FIGURES
from everflow.observe.http_server import exposition
from unit.observe.observations import FULL

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


ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "deploy/helm/everflow/alerts.yaml"
ADAPTER = ROOT / "deploy/prometheus-adapter.yaml"
TESTS = Path(__file__).with_name("alerts.test.yaml")
PROMTOOL = shutil.which("promtool")

with_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="no promtool here: it is in Debian's package prometheus"
)


def promtool(*arguments: str) -> str:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@with_promtool
def test_the_alerts_are_rules() -> None:
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(ALERTS))


@with_promtool
def test_each_alert_fires_for_its_cause_and_only_then() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(TESTS))


def test_each_alert_has_both_tests() -> None:
    rules = {rule["alert"] for rule in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]}
    well, *wrong = yaml.safe_load(TESTS.read_text())["tests"]
    assert {one["alertname"] for one in well["alert_rule_test"]} == rules
    assert not any(one.get("exp_alerts") for one in well["alert_rule_test"])
    fired = [one for test in wrong for one in test["alert_rule_test"] if one.get("exp_alerts")]
    assert {one["alertname"] for one in fired} == rules


@with_promtool
def test_the_adapters_query_is_the_largest_of_a_stateful_set(tmp_path: Path) -> None:
    """With what prometheus-adapter puts in for the StatefulSet orders of namespace shop."""
    (rule,) = yaml.safe_load(ADAPTER.read_text())["rules"]["custom"]
    query = rule["metricsQuery"]
    for field, text in (
        ("Series", "everflow_desired_instances"),
        ("LabelMatchers", 'namespace="shop",statefulset="orders"'),
        ("GroupBy", "statefulset"),
    ):
        query = query.replace(f"<<.{field}>>", text)
    series = [
        {
            "series": f'everflow_desired_instances{{namespace="{space}", statefulset="{name}", '
            f'pod="{name}-{number}"}}',
            "values": f"{value}x5",
        }
        for space, name, number, value in (
            ("shop", "orders", 0, 2),
            ("shop", "orders", 1, 3),
            ("shop", "bills", 0, 7),
            ("other", "orders", 0, 9),
        )
    ]
    wanted = [{"labels": '{statefulset="orders"}', "value": 3}]
    asked = {"expr": query, "eval_time": "1m", "exp_samples": wanted}
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [asked]}
    file = tmp_path / "adapter.test.yaml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [test]}))
    assert "SUCCESS" in promtool("test", "rules", str(file))


def recorded() -> list[dict[str, str]]:
    """What an instance with something of everything says, scraped for twenty minutes: counters
    grow."""
    series = []
    for family in text_string_to_metric_families(exposition(FULL).decode()):
        for sample in family.samples:
            labels = {**sample.labels, "instance": "i", "job": "everflow"}
            named = ", ".join(f'{name}="{value}"' for name, value in labels.items())
            values = "0+10x20" if family.type == "counter" else f"{sample.value}x20"
            series.append({"series": f"{sample.name}{{{named}}}", "values": values})
    return series


@with_promtool
def test_each_line_of_the_dashboard_is_drawn_of_recorded_data(tmp_path: Path) -> None:
    asked, wanted = [], [{"labels": "{}", "value": 1}]
    for panel in json.loads(grafana_dashboard.FILE.read_text())["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$client", ".*")
            assert "$" not in expression, panel["title"]
            drawn = f"count({expression}) > bool 0"
            asked.append({"expr": drawn, "eval_time": "15m", "exp_samples": wanted})
    assert asked
    test = {"interval": "1m", "input_series": recorded(), "promql_expr_test": asked}
    file = tmp_path / "dashboard.test.yaml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [test]}))
    assert "SUCCESS" in promtool("test", "rules", str(file))


@with_promtool
def test_the_dashboards_expressions_are_promql(tmp_path: Path) -> None:
    """Each as a recording rule, as there is no command for a query alone."""
    rules: list[dict[str, str]] = []
    for panel in json.loads(grafana_dashboard.FILE.read_text())["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "1m")
            expression = re.sub(r"\$\w+", "x", expression)
            rules.append({"record": f"panel:{len(rules)}", "expr": expression})
    assert rules
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(file))
