"""Draws the samples of a soak as one SVG: a panel for each figure, rebalances as thin lines."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from soak.flatness import Trend

WIDTH, HEIGHT, LEFT, TOP, GAP = 860, 96, 70, 46, 34
_INK, _LINE, _FAINT = "#1f2933", "#2563eb", "#d8dee6"


def drawing(
    title: str,
    at_s: Sequence[float],
    panels: Sequence[tuple[str, str, Sequence[float], Trend]],
    marks_s: Sequence[float],
) -> str:
    """``panels``: name, unit, values and trend of each figure; ``marks_s``: when members came or
    went. Times in s."""
    last_s = max([*at_s, 1.0])
    height = TOP + len(panels) * (HEIGHT + GAP) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 20}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{_INK}">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="15">{escape(title)}</text>',
    ]
    for number, (name, unit, values, trend) in enumerate(panels):
        top = TOP + number * (HEIGHT + GAP)
        parts += _panel(top, name, unit, values, trend, at_s, marks_s, last_s)
    minutes = range(0, int(last_s // 60) + 1, max(1, int(last_s // 600)))
    bottom = TOP + len(panels) * (HEIGHT + GAP) - GAP + 16
    parts += [
        f'<text x="{LEFT + WIDTH * minute * 60 / last_s:.0f}" y="{bottom}" '
        f'text-anchor="middle">{minute} min</text>'
        for minute in minutes
    ]
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    top: int,
    name: str,
    unit: str,
    values: Sequence[float],
    trend: Trend,
    at_s: Sequence[float],
    marks_s: Sequence[float],
    last_s: float,
) -> list[str]:
    most = max([*values, 1.0]) * 1.1

    def x(seconds: float) -> float:
        return LEFT + WIDTH * seconds / last_s

    def y(value: float) -> float:
        return top + HEIGHT * (1 - value / most)

    points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in zip(at_s, values, strict=True))
    told = f"{name}, {unit}: {trend.level:,.0f}, {trend.per_hour:+,.1f} an hour"
    return [
        *(
            f'<path d="M{x(at):.1f} {top}V{top + HEIGHT}" stroke="{_FAINT}"/>'
            for at in marks_s
            if at <= last_s
        ),
        f'<path d="M{LEFT} {top}V{top + HEIGHT}H{LEFT + WIDTH}" stroke="{_INK}" fill="none"/>',
        f'<text x="{LEFT - 6}" y="{y(most / 1.1) + 4:.0f}" text-anchor="end">'
        f"{most / 1.1:,.0f}</text>",
        f'<text x="{LEFT - 6}" y="{top + HEIGHT}" text-anchor="end">0</text>',
        f'<polyline points="{points}" stroke="{_LINE}" stroke-width="1.5" fill="none"/>',
        f'<text x="{LEFT + 6}" y="{top - 6}">{escape(told)}</text>',
    ]
