"""Draws the courses of a connect bench as one SVG: a panel for each event, a line for each system
and mode; records/s over the seconds since the event began."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from bench.connect.groups import GroupPlan
from bench.connect.measure import Course
from bench.connect.simulated import EVENTS

WIDTH, HEIGHT, LEFT, TOP, GAP = 860, 150, 60, 70, 50
_INK, _FAINT = "#1f2933", "#d8dee6"
_COLOURS = {
    ("everflow", "cooperative"): "#2563eb",
    ("everflow", "cooperative, delay"): "#0891b2",
    ("everflow", "drained"): "#7c3aed",
    ("kafka-connect", "eager"): "#dc2626",
    ("kafka-connect", "cooperative"): "#ea580c",
    ("kafka-connect", "cooperative, delay"): "#a16207",
}
BEFORE_S = 5
"""A course begins so long before its event."""


def drawing(plan: GroupPlan, courses: Sequence[Course]) -> str:
    """The picture, as text."""
    events = [event for event in EVENTS if any(one.event == event for one in courses)]
    height = TOP + len(events) * (HEIGHT + GAP) + 10
    title = (
        f"{plan.connectors} connectors with {plan.tasks_each} tasks each on {plan.instances} "
        f"instances: records/s in the output"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 20}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{_INK}">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="15">{escape(title)}</text>',
    ]
    drawn = {(one.system, one.mode) for one in courses}
    for number, key in enumerate(one for one in _COLOURS if one in drawn):
        x, y = LEFT + number % 3 * 290, 35 + number // 3 * 13
        parts.append(
            f'<text x="{x}" y="{y}" fill="{_COLOURS[key]}" font-size="11">{": ".join(key)}</text>'
        )
    for number, event in enumerate(events):
        of_event = [one for one in courses if one.event == event]
        parts += _panel(TOP + number * (HEIGHT + GAP), event, of_event)
    return "\n".join([*parts, "</svg>", ""])


def _panel(top: int, event: str, courses: Sequence[Course]) -> list[str]:
    last_s = max(len(one.seconds) for one in courses)
    most = max(count for one in courses for _, count in one.seconds) or 1
    most = min(most, 2 * max(_usual(one) for one in courses))  # what is made up is cut off

    def point(second: float, count: int) -> str:
        x = LEFT + WIDTH * second / last_s
        return f"{x:.1f},{top + HEIGHT * (1 - min(count, most) / most):.1f}"

    parts = [
        f'<text x="{LEFT}" y="{top - 4}">{escape(event)}</text>',
        f'<rect x="{LEFT}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" '
        f'stroke="{_FAINT}"/>',
        f'<text x="{LEFT - 4}" y="{top + 10}" text-anchor="end">{most:,}</text>',
        f'<text x="{LEFT - 4}" y="{top + HEIGHT}" text-anchor="end">0</text>',
    ]
    step = max(10, round(last_s / 80) * 10)
    for second in range(BEFORE_S, last_s, step):
        x = LEFT + WIDTH * second / last_s
        parts.append(
            f'<text x="{x:.0f}" y="{top + HEIGHT + 14}" text-anchor="middle">'
            f"{second - BEFORE_S} s</text>"
        )
    for one in courses:
        points = " ".join(point(second, count) for second, count in one.seconds)
        colour = _COLOURS[one.system, one.mode]
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.2"/>'
        )
    return parts


def _usual(course: Course) -> int:
    return sorted(count for _, count in course.seconds)[len(course.seconds) // 2] or 1
