"""Runs one comparison on cases drawn from a seed.

Usage: ``oracle/run.py [streams|columns|instances|check|coverage] [--cases N] [--seed S]
[--json FILE]``.
Ends with 1 where anything differs, after it has said what. ``coverage`` only counts what so many
cases of ``streams`` would have, and ends with 1 where a pair of stateful operators is never drawn.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from everflow.spark.session import get_session  # noqa: E402
from oracle import book, checks, columns, instances, streams  # noqa: E402

EVERY_S = 10.0
Report: TypeAlias = columns.Report | streams.Report | instances.Report | checks.Report


def main() -> int:
    parser = argparse.ArgumentParser(prog="oracle", description=__doc__)
    parser.add_argument(
        "name",
        nargs="?",
        choices=["streams", "columns", "instances", "check", "coverage"],
        default="streams",
        help="operators against Kafka Streams (default), Arrow expressions of Columns against "
        "Spark, one instance against several that are killed, everflow check against restarts, or "
        "which operators are drawn",
    )
    parser.add_argument("--cases", type=int, default=1000, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=1, help="what they are drawn from")
    parser.add_argument("--json", type=Path, help="write the report to this file", metavar="FILE")
    arguments = parser.parse_args()
    if arguments.name == "coverage":
        return _covered(arguments.cases, arguments.seed)
    session = None if arguments.name == "instances" else get_session()
    began = time.monotonic()
    reports: Iterator[Report]
    if session is None:
        reports = instances.compare(arguments.cases, arguments.seed)
    elif arguments.name == "check":
        reports = checks.compare(arguments.cases, arguments.seed)
    elif arguments.name == "columns":
        reports = columns.compare(session, arguments.cases, arguments.seed)
    else:
        reports = streams.compare(arguments.cases, arguments.seed)
    report = _followed(reports)
    seconds = time.monotonic() - began
    print(f"{report.cases} cases of seed {report.seed} in {seconds:.0f} s: {report.said()}")
    if arguments.json:
        written = {
            "operators": report.operators,
            "cases": report.cases,
            "seed": report.seed,
            "differences": report.differing,
            "equal": report.equal,
            **report.more(),
        }
        arguments.json.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n")
    if session is not None:
        session.stop()
    return 0 if report.clean else 1


def _covered(cases: int, seed: int) -> int:
    drawn = book.drawn_book(-(-cases // streams.SCRIPTS_A_PROGRAM), seed)
    for name, count in drawn.operators.most_common():
        print(f"{name}: {count}")
    for name, count in drawn.counted().items():
        print(f"{name}: {count}")
    print(f"{drawn.programs} programs: {drawn.said()}")
    return 1 if drawn.missing else 0


def _followed(reports: Iterator[Report]) -> Report:
    """The last report; says each difference when it is found, and now and then how far it is."""
    told, shown = time.monotonic(), 0
    for report in reports:
        for text in report.differing[shown:]:
            print(f"differs: {text}", flush=True)
        shown = len(report.differing)
        if time.monotonic() - told > EVERY_S:
            told = time.monotonic()
            print(f"{report.cases} cases, {len(report.differing)} differ", flush=True)
    return report


if __name__ == "__main__":
    sys.exit(main())
