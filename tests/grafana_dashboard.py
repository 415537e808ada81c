"""Makes deploy/grafana/everflow.json: panels in the order of an operator's questions. After a
change run it:

.venv/bin/python tests/grafana_dashboard.py
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).resolve().parents[1] / "deploy" / "grafana" / "everflow.json"
WHERE = '{client_id=~"$client"}'
STREAM = "kafka_streams_stream_"
THREAD, TASK = f"{STREAM}thread_metrics_", f"{STREAM}task_metrics_"
NODE, TOPIC = f"{STREAM}processor_node_metrics_", f"{STREAM}topic_metrics_"
CLIENTS = 'label_values(everflow_info{application_id="$application"}, client_id)'
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Panel(NamedTuple):
    """``queries``: legend -> expression."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    wide: int = 8


def rate(figure: str, *by: str, of: str = "1m") -> dict[str, str]:
    legend = " ".join(f"{{{{{label}}}}}" for label in by) or "all"
    return {legend: f"sum by ({', '.join(by)}) (rate({figure}{WHERE}[{of}]))"}


def each(figure: str, *by: str, most: int = 0) -> dict[str, str]:
    """A gauge's values by these labels; ``most``: only so many of the largest."""
    legend = " ".join(f"{{{{{label}}}}}" for label in by)
    value = f"max by ({', '.join(by)}) ({figure}{WHERE})"
    return {legend: f"topk({most}, {value})" if most else value}


BEHIND_S = f"sum(everflow_records_lag{WHERE}) / sum(rate({THREAD}process_total{WHERE}[5m]))"
INSTANCES = {
    "there are": f"max(everflow_members{WHERE})",
    "there should be": f"max(everflow_desired_instances{WHERE})",
}
LONGEST = {
    "batch": f"max({THREAD}process_latency_max{WHERE})",
    "commit": f"max({THREAD}commit_latency_max{WHERE})",
}
LAG = "kafka_consumer_fetch_manager_metrics_records_lag"
STATES = {"{{role}} {{state}}": f"sum by (role, state) (everflow_task_state{WHERE})"}
DISK = {"{{store}}": f"sum by (store) (everflow_store_bytes{WHERE})"}
LEFT = {
    "{{client_id}}": f"min by (client_id) (everflow_state_disk_free_bytes{WHERE} / "
    f"everflow_state_disk_bytes{WHERE})"
}
REBALANCES = "kafka_consumer_coordinator_metrics_rebalance_total"

CONNECTORS = {
    "{{connector}} {{state}}": f"sum by (connector, state) (everflow_connector_tasks{WHERE})"
}
WAITING = {"{{connector}}": f"sum by (connector) (everflow_connector_lag{WHERE})"}
CONNECTOR_ERRORS = "everflow_connector_errors_total"

ROWS: dict[str, tuple[Panel, ...]] = {
    "Is it well": (
        Panel("State", each(f"{STREAM}metrics_client_state", "client_id"), kind="stat", wide=6),
        Panel("Ready", each("everflow_ready", "client_id"), kind="stat", wide=6),
        Panel("Time to catch up", {"all": BEHIND_S}, "s", "stat", 6),
        Panel("Instances", INSTANCES, kind="stat", wide=6),
    ),
    "Does it keep up": (
        Panel("Records that wait", each("everflow_records_lag", "client_id")),
        Panel("Partitions furthest behind", each(LAG, "topic", "partition", most=10)),
        Panel("Records processed", rate(f"{THREAD}process_total", "processor_node_id"), "reqps"),
        Panel(
            "From a record's time to its commit",
            each(f"{NODE}record_e2e_latency_avg", "processor_node_id"),
            "ms",
        ),
        Panel("Busy", each(f"{THREAD}process_ratio", "client_id", "thread_id"), "percentunit"),
        Panel("Records written", rate(f"{TOPIC}records_produced_total", "topic_name"), "reqps"),
    ),
    "Where the time goes": (
        Panel("A second, by phase", rate("everflow_batch_seconds_total", "phase"), "s", wide=12),
        Panel("The longest micro-batch", LONGEST, "ms", wide=12),
    ),
    "What goes wrong": (
        Panel("Batches run again", rate("everflow_batches_failed_total", "kind", of="5m")),
        Panel(
            "Records left out",
            rate(f"{TASK}dropped_records_total", "processor_node_id", "reason", of="5m"),
        ),
        Panel("Dead letters", rate("everflow_dead_letters_total", "client_id", of="5m")),
        Panel("How late records are", each(f"{TASK}record_lateness_max", "task_id"), "ms"),
        Panel("Tasks in trouble", each("everflow_task_troubled", "client_id", "task_id")),
        Panel("Rebalances", rate(REBALANCES, "client_id", of="5m")),
        Panel(
            "Transactions that are open",
            each("everflow_transaction_open_seconds", "client_id", "thread_id", most=10),
            "s",
        ),
        Panel(
            "Partitions held back by open transactions",
            each("everflow_stable_offset_held_seconds", "topic", "partition", most=10),
            "s",
        ),
        Panel("Commits refused", rate("everflow_commits_refused_total", "cause", of="5m")),
        Panel("Connectors: tasks by state", CONNECTORS),
        Panel("Connectors: records that wait", WAITING),
        Panel("Connectors: batches that failed", rate(CONNECTOR_ERRORS, "connector", of="5m")),
    ),
    "State": (
        Panel("Tasks by role and state", STATES),
        Panel("Restores: seconds left", each("everflow_restore_remaining_seconds", "task_id"), "s"),
        Panel(
            "Copies: records behind",
            each(f"{TASK}updating_remaining_records_total", "task_id", "role", most=10),
        ),
        Panel("Disk", DISK, "bytes"),
        Panel("Disk that is left", LEFT, "percentunit"),
        Panel("Changes of stores", rate(f"{STREAM}state_metrics_put_total", "store")),
    ),
}


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    below = 0
    for title, row in ROWS.items():
        panels.append(_placed({"type": "row", "title": title}, len(panels), 0, below, 24, 1))
        below, left = below + 1, 0
        for panel in row:
            if left + panel.wide > 24:
                left, below = 0, below + 8
            panels.append(_placed(_panel(panel), len(panels), left, below, panel.wide, 8))
            left += panel.wide
        below += 8
    return {
        "title": "everflow",
        "uid": "everflow",
        "tags": ["everflow", "kafka-streams"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                {
                    "name": "application",
                    "type": "query",
                    "datasource": SOURCE,
                    "query": "label_values(everflow_info, application_id)",
                },
                {
                    "name": "client",
                    "type": "query",
                    "datasource": SOURCE,
                    "query": CLIENTS,
                    "multi": True,
                    "includeAll": True,
                },
            ]
        },
        "panels": panels,
    }


def _placed(
    panel: dict[str, Any], number: int, x: int, y: int, width: int, height: int
) -> dict[str, Any]:
    return {**panel, "id": number + 1, "gridPos": {"x": x, "y": y, "w": width, "h": height}}


def _panel(panel: Panel) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + number),
            "datasource": SOURCE,
            "expr": expression,
            "legendFormat": legend,
        }
        for number, (legend, expression) in enumerate(panel.queries.items())
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": targets,
    }


def text() -> str:
    """As it lies in the repository."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(text())
