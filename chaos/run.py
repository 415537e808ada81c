"""`./run chaos`: what may go wrong is made to, under load; then the books are checked.

``./run chaos`` draws faults of all kinds in rounds, against three instances
(`chaos.rounds.command`); ``./run chaos kills`` ends processes of one instance at named points
(`chaos.kills`); ``./run chaos elastic`` lets instances come and go (`chaos.elastic`); ``./run chaos
migrate`` strikes both versions and the migrator at named points of migrations (`chaos.migrate`);
``./run chaos sinks`` a program that writes rows to sinks outside Kafka (`chaos.sinks`);
``./run chaos sources`` kills one of two instances that read files and a table (`chaos.sources`);
``./run chaos changes`` kills those that copy a database's changes (`chaos.changes`); ``./run chaos
times`` compares drawn ways to run a program with a plain batch (`chaos.times`).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

JVM_OPTIONS = "-XX:TieredStopAtLevel=1"
"""The JVMs of a run are four on a machine of two cores, and each is started again and again: what
the second compiler does never pays (as in conftest.py)."""

COMMANDS = {
    "kills": "chaos.kills",
    "elastic": "chaos.elastic",
    "migrate": "chaos.migrate",
    "sinks": "chaos.sinks",
    "sources": "chaos.sources",
    "changes": "chaos.changes",
    "times": "chaos.times",
}


def main(arguments: Sequence[str]) -> int:
    """0 if everything is clean."""
    # The first name is of Spark's own scripts, the second of Kafka's.
    for name in ("SPARK_SUBMIT_OPTS", "KAFKA_OPTS"):
        os.environ.setdefault(name, JVM_OPTIONS)
    named = bool(arguments) and arguments[0] in COMMANDS
    module = COMMANDS[arguments[0]] if named else "chaos.rounds.command"
    return int(importlib.import_module(module).main(arguments[1:] if named else arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
