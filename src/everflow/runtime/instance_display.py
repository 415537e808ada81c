"""`InstanceDisplay`, a part of `KafkaStreams`: what it shows in a notebook and at a prompt."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from everflow import metrics as names
from everflow.records import TaskId
from everflow.runtime.client_state import ENDED
from everflow.runtime.instance_life import Living
from everflow.runtime.task_status import TaskStatus
from everflow.runtime.task_words import progress, role_of, summary, trouble

if TYPE_CHECKING:
    from everflow.errors import EverflowError
    from everflow.topology.program import Topology

_CELL = "text-align: left; padding: 2px 12px 2px 0"
_ROWS = 50


class InstanceDisplay(Living):
    """The last expression of a notebook's cell shows state, tasks and graph; a look also tells the
    rate since the one before."""

    _topology: Topology
    _looked: tuple[float, float] | None = None
    """When somebody looked last (s), and how many records had been processed by then."""

    def all_tasks(self) -> dict[TaskId, TaskStatus]:
        """Every task on this instance."""
        raise NotImplementedError

    def metrics(self) -> dict[str, float | str]:
        """Counters and gauges."""
        raise NotImplementedError

    def __repr__(self) -> str:
        parts = [
            f"state {self.state.name}",
            *([] if self.state in ENDED else [summary(self.all_tasks()), self._lag()]),
        ]
        if self.error is not None:
            parts.append(f"error [{self.error.code}] {_first_line(self.error)}")
        return f"KafkaStreams({self.config.application_id}: {', '.join(filter(None, parts))})"

    def _repr_html_(self) -> str:
        tasks = {} if self.state in ENDED else self.all_tasks()
        lines = [
            f"<b>{escape(self.config.application_id)}</b> &nbsp; {self.state.name}",
            escape(" · ".join(filter(None, [*self._flow(), summary(tasks)]))),
        ]
        if self.error is not None:
            lines.append(f"<b>[{escape(self.error.code)}]</b> <pre>{escape(str(self.error))}</pre>")
        graph = f"<details><summary>topology</summary>{self._topology._repr_html_()}</details>"
        return f"<div>{''.join(f'<div>{line}</div>' for line in lines)}{_table(tasks)}{graph}</div>"

    def _flow(self) -> Sequence[str]:
        """How much was processed, how fast since the last look, and what waits."""
        now, records = time.monotonic(), self._number(names.RECORDS_CONSUMED)
        before, self._looked = self._looked, (now, records)
        found = [f"{records:,.0f} records processed"]
        if before is not None and now - before[0] >= 0.1:
            found.append(
                f"{(records - before[1]) / (now - before[0]):,.0f} records/s since the last look"
            )
        return found if self.state in ENDED else [*found, self._lag()]

    def _lag(self) -> str:
        lag = self._number(names.LAG)
        return "lag unknown" if math.isnan(lag) else f"lag {lag:,.0f}"

    def _number(self, name: str) -> float:
        return float(self.metrics().get(name, 0))


def _table(tasks: Mapping[TaskId, TaskStatus]) -> str:
    if not tasks:
        return ""
    head = "".join(
        f'<th style="{_CELL}">{title}</th>' for title in ("task", "role", "state", "lag", "")
    )
    rows = [_row(task, status) for task, status in list(tasks.items())[:_ROWS]]
    if len(tasks) > _ROWS:
        rows.append(f'<tr><td colspan="5">and {len(tasks) - _ROWS:,} more tasks</td></tr>')
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _row(task: TaskId, status: TaskStatus) -> str:
    lag = "unknown" if status.lag is None else f"{status.lag:,}"
    said = (
        trouble(status.trouble)
        if status.trouble is not None
        else ""
        if status.copied is None
        else progress([status])
    )
    cells = (str(task), role_of(status), status.state.name, lag, said)
    return "<tr>" + "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in cells) + "</tr>"


def _first_line(error: EverflowError) -> str:
    return (str(error).splitlines() or [""])[0]
