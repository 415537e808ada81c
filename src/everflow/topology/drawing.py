"""A topology as an inline SVG that needs no network and no script: for notebooks. Pure.

Each sub-topology is a block of rows: the topics it reads, its processors (with their stores), the
topics it writes. Rows follow the longest way from a source, so every arrow points down.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from everflow.topology.describe import Shown, in_numbers, shown_nodes, sink_topic, topics_of
from everflow.topology.graph import Graph
from everflow.topology.subtopologies import GlobalSubTopology, SubTopology
from everflow.topology.types import type_text
from everflow.user_program import place

_CHAR, _LINE, _PAD, _GAP, _ROW_GAP, _MARGIN = 6.7, 15, 10, 18, 26, 12
_MOST_CHARS = 44
_STYLE = "font: 11px ui-monospace, Menlo, Consolas, monospace; max-width: 100%; height: auto"


@dataclass(kw_only=True)
class _Box:
    """``lines``: what stands in it; ``kind``: topic, processor or store; ``tip``: shown when
    pointed at; ``name``: of the topic or node, whole."""

    lines: tuple[str, ...]
    kind: str
    tip: str
    name: str
    rank: int = 0
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        return max(len(line) for line in self.lines) * _CHAR + 2 * _PAD

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE + _PAD

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


def as_svg(topology: Graph) -> str:
    """One ``<svg>`` element; text and lines have the colour of the page, so that it suits a dark
    one. The page of an instance finds nodes, topics and sub-topologies by their ``data-``
    attributes."""
    parts: list[str] = []
    y, width = 0.0, 0.0
    for sub in in_numbers(topology):
        boxes, edges = _boxes(sub)
        right, bottom = _place(boxes, edges, y + _MARGIN + _LINE)
        title, bold = f"Sub-topology {sub.index}", "font-weight: bold"
        parts.append(_text(_MARGIN, y + _MARGIN, title, bold, f' data-sub="{sub.index}"'))
        parts += [_arrow(boxes[start], boxes[end]) for start, end in edges]
        parts += [_drawn(box) for box in boxes.values()]
        y, width = bottom + _MARGIN, max(width, right)
    width, height = round(width + _MARGIN), round(y)
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{_STYLE}">'
        + "".join(parts)
        + "</svg>"
    )


def _boxes(sub: SubTopology | GlobalSubTopology) -> tuple[dict[str, _Box], list[tuple[str, str]]]:
    """Boxes by id, in topological order, with their ranks; and the arrows between them."""
    shown = shown_nodes(sub)
    boxes: dict[str, _Box] = {}
    edges: list[tuple[str, str]] = []
    for name, entry in shown.items():
        if entry.kind == "Source":
            for topic in topics_of(entry):
                boxes[f"in {topic}"] = _Box(
                    lines=(_short(topic),), kind="topic", tip=f"topic {topic}", name=topic
                )
                edges.append((f"in {topic}", name))
    for name, entry in shown.items():
        before = [boxes[start].rank for start, end in edges if end == name]
        lines = (_short(name), *(_short(f"store {store}") for store in entry.stores))
        boxes[name] = _Box(
            lines=lines,
            kind="store" if entry.stores else "processor",
            tip=_tip(entry),
            name=name,
            rank=max(before, default=-1) + 1,
        )
        edges += [(name, after) for after in entry.successors]
    for name, entry in shown.items():
        if entry.kind == "Sink":
            topic = sink_topic(entry.node)
            below = boxes[name].rank + 1
            found = boxes.setdefault(
                f"out {topic}",
                _Box(
                    lines=(_short(topic),),
                    kind="topic",
                    tip=f"topic {topic}",
                    name=topic,
                    rank=below,
                ),
            )
            found.rank = max(found.rank, below)
            edges.append((name, f"out {topic}"))
    return boxes, edges


def _place(boxes: dict[str, _Box], edges: list[tuple[str, str]], top: float) -> tuple[float, float]:
    """Sets ``x`` and ``y``; returns the right and the lower end."""
    right, y = 0.0, top
    for rank in range(max(box.rank for box in boxes.values()) + 1):
        row = [(name, box) for name, box in boxes.items() if box.rank == rank]
        wanted = {
            name: [
                boxes[start].middle
                for start, end in edges
                if end == name and boxes[start].rank < rank
            ]
            for name, _ in row
        }
        row.sort(
            key=lambda item: sum(wanted[item[0]]) / len(wanted[item[0]]) if wanted[item[0]] else 0.0
        )
        x = float(_MARGIN)
        for name, box in row:
            above = wanted[name]
            box.x = max(x, sum(above) / len(above) - box.width / 2) if above else x
            box.y = y
            x = box.x + box.width + _GAP
            right = max(right, box.x + box.width)
        y += max((box.height for _, box in row), default=0.0) + _ROW_GAP
    return right, y - _ROW_GAP


def _tip(entry: Shown) -> str:
    node = entry.node
    types = f"{type_text(node.out.key)} -> {type_text(node.out.value)}"
    return f"{entry.name}\n{types}" + (f"\nat {place(node.where)}" if node.where else "")


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 1]}…"


def _drawn(box: _Box) -> str:
    fill = {"topic": "rgba(120,120,120,.16)", "processor": "none", "store": "rgba(60,130,220,.18)"}[
        box.kind
    ]
    shape = (
        f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" '
        f'rx="{10 if box.kind == "topic" else 3}" fill="{fill}" stroke="currentColor" '
        f'stroke-opacity=".55"/>'
    )
    texts = [
        _text(box.x + _PAD, box.y + _LINE * (line + 1), text) for line, text in enumerate(box.lines)
    ]
    marked = f'data-{"topic" if box.kind == "topic" else "node"}="{escape(box.name)}"'
    return f"<g {marked}><title>{escape(box.tip)}</title>{shape}{''.join(texts)}</g>"


def _text(x: float, y: float, text: str, style: str = "", marked: str = "") -> str:
    styled = f' style="{style}"' if style else ""
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" fill="currentColor"{styled}{marked}>{escape(text)}</text>'
    )


def _arrow(start: _Box, end: _Box) -> str:
    from_y, to_y = start.y + start.height, end.y
    half = (from_y + to_y) / 2
    left, right = start.middle, end.middle
    line = (
        f"M{left:.0f} {from_y:.0f} C{left:.0f} {half:.0f} {right:.0f} {half:.0f} {right:.0f} "
        f"{to_y:.0f}"
    )
    tip = f"M{right - 3:.0f} {to_y - 6:.0f} L{right:.0f} {to_y:.0f} L{right + 3:.0f} {to_y - 6:.0f}"
    return f'<path d="{line} {tip}" fill="none" stroke="currentColor" stroke-opacity=".55"/>'
