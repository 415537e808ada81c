"""Runs one comparison on cases drawn from a seed.

Usage: ``oracle/run.py columns [--cases N] [--seed S] [--json FILE]``. Ends with 1 where anything
differs, after it has said what.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from everflow.spark.session import get_session  # noqa: E402
from oracle.columns import Report, compare  # noqa: E402

EVERY_S = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="oracle", description=__doc__)
    parser.add_argument("name", choices=["columns"], help="what is compared")
    parser.add_argument("--cases", type=int, default=1000, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=1, help="what they are drawn from")
    parser.add_argument("--json", type=Path, help="write the report to this file", metavar="FILE")
    arguments = parser.parse_args()
    session = get_session()
    began = told = time.monotonic()
    report, shown = Report(arguments.seed), 0
    for report in compare(session, arguments.cases, arguments.seed):
        for text in report.differing[shown:]:
            print(f"differs: {text}", flush=True)
        shown = len(report.differing)
        if time.monotonic() - told > EVERY_S:
            told = time.monotonic()
            print(f"{report.cases} cases, {len(report.differing)} differ", flush=True)
    print(_said(report, time.monotonic() - began))
    if arguments.json:
        written = {
            "operators": [arguments.name],
            "cases": report.cases,
            "seed": report.seed,
            "differences": report.differing,
            "equal": report.equal,
            "left_to_spark": report.left_to_spark,
            "without_twin": dict(report.without_twin),
        }
        arguments.json.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n")
    session.stop()
    return 0 if report.clean else 1


def _said(report: Report, seconds: float) -> str:
    without = sum(report.without_twin.values())
    lines = [
        f"{report.cases} cases of seed {report.seed} in {seconds:.0f} s: {report.equal} equal, "
        f"{report.left_to_spark} left to Spark by the twin, {without} without a twin, "
        f"{len(report.differing)} differ"
    ]
    lines += [f"  no twin: {why} ({count})" for why, count in report.without_twin.most_common(8)]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
