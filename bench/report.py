"""`bench report`: the tables of docs/PERFORMANCE.md, made of the results committed in
bench/results.

A file there is what `--json` wrote, as DATE-NAME.json: `2026-11-30-load-half-a-core.json`. Of each
name the newest counts. The page has a part between `<!-- begin PART -->` and `<!-- end PART -->`
for each of `PARTS`; all around it is written by hand. A part without results stays as it is, with
the date of its hand-made table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.load.picture import drawing
from bench.load.table import table
from bench.nexmark.ratios import THROUGHPUT, THROUGHPUT_RATIO, TO
from bench.results import Results, Row, markdown, number_text, read_json
from bench.systems import EVERFLOW, ROOT

RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "PERFORMANCE.md"
PICTURES = ROOT / "docs" / "design" / "pictures"
PARTS: Mapping[str, tuple[str, ...]] = {
    "count": ("throughput", "latency"),
    "instances": ("scaleout", "failover", "restore"),
    "programs": ("programs",),
    "load": ("load",),
    "neighbour": ("load-neighbour",),
    "operators": ("operators",),
    "nexmark": ("nexmark",),
    "growth": ("growth",),
}
"""Part of the page -> what the names of its results begin with, one of each at least."""
_NAME = re.compile(r"(\d{4}-\d\d-\d\d)-(.+)")


@dataclass(frozen=True)
class Named:
    """Results, and the name of their file without its date."""

    name: str
    results: Results


def write(results: Path = RESULTS, page: Path = PAGE, pictures: Path = PICTURES) -> list[str]:
    """Make the page and its pictures anew; the names of the files that changed."""
    found = newest(results)
    files = {pictures / f"{one.name}.svg": drawing(one.results) for one in found if is_load(one)}
    files[page] = made(page.read_text(), found)
    changed = {file: text for file, text in files.items() if _text(file) != text}
    for file, text in changed.items():
        file.write_text(text)
    return [file.name for file in changed]


def newest(folder: Path) -> list[Named]:
    """The newest results of each name, by name. `ValueError` for a file that is not named by its
    own date, or whose name no part takes."""
    found: dict[str, Named] = {}
    for file in sorted(folder.glob("*.json")):
        parsed = _NAME.fullmatch(file.stem)
        results = read_json(file)
        if parsed is None or parsed[1] != results.date:
            raise ValueError(f"{file.name}: the name is not DATE-NAME.json with {results.date}")
        if beginning(parsed[2]) is None:
            raise ValueError(f"{file.name}: no part of the page takes {parsed[2]}")
        found[parsed[2]] = Named(parsed[2], results)
    return [found[name] for name in sorted(found)]


def beginning(name: str) -> str | None:
    """The longest of all beginnings in `PARTS` that the name has; a dash follows it, or nothing."""
    known = [one for beginnings in PARTS.values() for one in beginnings]
    return max((one for one in known if f"{name}-".startswith(f"{one}-")), key=len, default=None)


def is_load(one: Named) -> bool:
    """Whether they are of `bench load`, and so drawn."""
    return (beginning(one.name) or "").startswith("load")


def made(page: str, found: Sequence[Named]) -> str:
    """The page with those parts made anew for which each beginning has results."""
    for part, beginnings in PARTS.items():
        of_part = [one for one in found if beginning(one.name) in beginnings]
        if {beginning(one.name) for one in of_part} != set(beginnings):
            continue
        begin, end = f"<!-- begin {part} -->\n", f"<!-- end {part} -->\n"
        if page.count(begin) != 1 or page.count(end) != 1:
            raise ValueError(f"the page needs one {begin.strip()} and one {end.strip()}")
        before, _, rest = page.partition(begin)
        text = "\n".join(_lines(of_part))
        page = before + begin + text + "\n" + end + rest.partition(end)[2]
    return page


def _lines(of_part: Sequence[Named]) -> Iterator[str]:
    """Of each: what made it, and its table."""
    for number, one in enumerate(of_part):
        if number:
            yield ""
        done = one.results
        yield origin(done)
        yield ""
        if is_load(one):
            yield f"![Latency and cores over the pace](design/pictures/{one.name}.svg)"
            yield ""
            yield from markdown(table(done.rows))
        else:
            yield from markdown(plain_table(done.rows))


def origin(done: Results) -> str:
    """The sentence over a table."""
    machine, versions = done.machine, done.versions
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    notes = dict.fromkeys(
        note for row in done.rows for note in row.note.split("; ") if note.startswith("held by")
    )
    return (
        f"`{done.command}` on {done.date}: {machine['cores']} cores ({machine['architecture']}), "
        f"on which the loop takes {machine['loop_ms']} ms; {named}"
        + "".join(f"; {note}" for note in notes)
        + "."
    )


def plain_table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """A head, and a line for each case, guarantee and metric: a column for each system, then the
    ratio of everflow to each of the others."""
    systems = list(dict.fromkeys(row.system for row in rows))
    systems.sort(key=lambda system: system != EVERFLOW)
    others = [system for system in systems if system != EVERFLOW] if EVERFLOW in systems else []
    lines: dict[tuple[str, str, str, str], dict[str, Row]] = {}
    for row in rows:
        if row.metric == THROUGHPUT_RATIO:
            continue
        key = (row.case, row.guarantee, row.metric, row.unit)
        lines.setdefault(key, {})[row.system] = row
    head = ("case", "guarantee", "figure", *systems, *(f"{EVERFLOW} / {one}" for one in others))
    cells = [head]
    for (case, guarantee, metric, unit), found in lines.items():
        values = (
            f"{number_text(found[system].value)}{'*' if found[system].note else ''}"
            if system in found
            else ""
            for system in systems
        )
        ratios = (
            f"{found[EVERFLOW].value / found[other].value:.2f}"
            if EVERFLOW in found and other in found and found[other].value
            else ""
            for other in others
        )
        cells.append((case, guarantee, f"{metric}, {unit}", *values, *ratios))
    for row in rows:
        if row.metric == THROUGHPUT_RATIO and row.system == EVERFLOW:
            case, _, reference = row.case.partition(TO)
            ratios = (f"{row.value:.2f}" if one == reference else "" for one in others)
            cells.append((case, row.guarantee, THROUGHPUT, *("" for _ in systems), *ratios))
    notes = dict.fromkeys(row.note for row in rows if row.note)
    return [*cells, *(("*", "", note, *("" for _ in head[3:])) for note in notes)]


def _text(file: Path) -> str | None:
    return file.read_text() if file.is_file() else None
