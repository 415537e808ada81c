"""Instances of the programs of `chaos.times_programs` (`chaos.hosted_instances`).

``python -m chaos.times_instance EVENTS SETTINGS``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from chaos.hosted_instances import host  # noqa: E402
from chaos.times_programs import program  # noqa: E402
from everflow import Topology  # noqa: E402


def topic_of(application: str, topic: str) -> str:
    """Each application has topics of its own."""
    return f"{application}.{topic}"


def topology(name: str, application: str) -> Topology:
    return program(name, lambda topic: topic_of(application, topic)).build()


if __name__ == "__main__":
    sys.exit(host(json.loads(sys.argv[2]), Path(sys.argv[1]), topology))
