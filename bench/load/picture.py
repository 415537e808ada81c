"""Draws the results of `bench load` as one SVG: for each setting the p99 and the cores over the
pace, a line for each system."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from bench.load.plan import AT
from bench.load.table import FELL_BEHIND
from bench.results import Results, Row
from bench.systems import (
    EVERFLOW,
    FLINK_SQL,
    KAFKA_STREAMS,
    KAFKA_STREAMS_KIP1071,
    KAFKA_STREAMS_KIP1071_TRANSACTIONAL,
    KAFKA_STREAMS_TRANSACTIONAL,
)

WIDTH, HEIGHT, LEFT, TOP, GAP, BETWEEN = 380, 150, 60, 80, 60, 80
_INK, _FAINT, _OTHER = "#1f2933", "#d8dee6", "#64748b"
_COLOURS = {
    EVERFLOW: "#2563eb",
    KAFKA_STREAMS: "#dc2626",
    KAFKA_STREAMS_KIP1071: "#ea580c",
    KAFKA_STREAMS_TRANSACTIONAL: "#a16207",
    KAFKA_STREAMS_KIP1071_TRANSACTIONAL: "#7c3aed",
    FLINK_SQL: "#0891b2",
}
PANELS = {"latency_p99": "p99, ms", "processor": "cores"}


def drawing(done: Results) -> str:
    """The picture, as text."""
    rows = [row for row in done.rows if AT in row.case and row.metric in PANELS]
    settings = list(dict.fromkeys(row.case.partition(AT)[0] for row in rows))
    systems = list(dict.fromkeys(row.system for row in rows))
    width = LEFT + 2 * WIDTH + BETWEEN + 20
    height = TOP + len(settings) * (HEIGHT + GAP)
    title = f"{done.date}: latency and cores at fixed paces (a ring: it fell behind)"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{_INK}">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="15">{escape(title)}</text>',
    ]
    for number, system in enumerate(systems):
        x, y = LEFT + number % 3 * 280, 36 + number // 3 * 14
        colour = _COLOURS.get(system, _OTHER)
        parts.append(f'<text x="{x}" y="{y}" fill="{colour}" font-size="11">{system}</text>')
    for number, setting in enumerate(settings):
        top = TOP + number * (HEIGHT + GAP)
        for place, (metric, name) in enumerate(PANELS.items()):
            drawn = [
                row for row in rows if row.metric == metric and row.case.partition(AT)[0] == setting
            ]
            if drawn:
                left = LEFT + place * (WIDTH + BETWEEN)
                parts += _panel(left, top, f"{setting}: {name}", drawn)
    return "\n".join([*parts, "</svg>", ""])


def _panel(left: int, top: int, title: str, rows: Sequence[Row]) -> list[str]:
    """From zero; of latencies, which may differ by a thousand, the logarithm of ms from one on."""
    logarithmic = rows[0].unit == "ms"
    labels = list(dict.fromkeys(row.case.partition(AT)[2] for row in rows))
    most = max(row.value for row in rows)
    top_value = 10 ** math.ceil(math.log10(max(most, 10))) if logarithmic else most or 1

    def point(row: Row) -> tuple[float, float]:
        place = labels.index(row.case.partition(AT)[2])
        x = left + WIDTH * (place + 0.5) / len(labels)
        part = (
            math.log10(max(row.value, 1)) / math.log10(top_value)
            if logarithmic
            else row.value / top_value
        )
        return x, top + HEIGHT * (1 - part)

    parts = [
        f'<text x="{left}" y="{top - 4}">{escape(title)}</text>',
        f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" '
        f'stroke="{_FAINT}"/>',
        f'<text x="{left - 4}" y="{top + 10}" text-anchor="end">{top_value:,g}</text>',
        f'<text x="{left - 4}" y="{top + HEIGHT}" text-anchor="end">{1 if logarithmic else 0}'
        "</text>",
    ]
    for place, label in enumerate(labels):
        x = left + WIDTH * (place + 0.5) / len(labels)
        parts.append(
            f'<text x="{x:.0f}" y="{top + HEIGHT + 14}" text-anchor="middle" font-size="11">'
            f"{escape(label)}</text>"
        )
    for system in dict.fromkeys(row.system for row in rows):
        colour = _COLOURS.get(system, _OTHER)
        drawn = [(*point(row), FELL_BEHIND in row.note) for row in rows if row.system == system]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in drawn)
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.2"/>'
        )
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" stroke="{colour}" '
            f'fill="{"#ffffff" if behind else colour}"/>'
            for x, y, behind in drawn
        ]
    return parts
