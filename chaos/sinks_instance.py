"""Instances of programs of `chaos.sink_places` (`chaos.hosted_instances`).

``python -m chaos.sinks_instance EVENTS SETTINGS``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from chaos.hosted_instances import Order, host  # noqa: E402
from chaos.sink_places import Place  # noqa: E402
from everflow import Topology  # noqa: E402


def order_of(word: str, name: str, place: Place) -> Order:
    """A static member with this name."""
    given, settings = {"kind": place.kind, "at": place.at}, {"group.instance.id": name}
    return Order(word, name, application_of(place.kind), given, settings)


def topology(kind: str, at: str) -> Topology:
    return Place(kind, at).program(f"{application_of(kind)}-in").build()


def application_of(kind: str) -> str:
    return f"chaos-{kind}"


if __name__ == "__main__":
    sys.exit(host(json.loads(sys.argv[2]), Path(sys.argv[1]), topology))
