"""The test kit, for users too: a driver without a broker, a real broker as a context manager, and waiting for conditions."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from everflow.testing.broker import EmbeddedBroker
from everflow.testing.waiting import wait_until

if TYPE_CHECKING:
    from everflow.testing.store_views import ValueAndTimestamp
    from everflow.testing.topics import TestRecord
    from everflow.testing.topology_test_driver import TopologyTestDriver

__all__ = ["EmbeddedBroker", "TestRecord", "TopologyTestDriver", "ValueAndTimestamp", "wait_until"]

_NEEDS_SPARK = {
    "TestRecord": "everflow.testing.topics",
    "TopologyTestDriver": "everflow.testing.topology_test_driver",
    "ValueAndTimestamp": "everflow.testing.store_views",
}


def __getattr__(name: str) -> Any:
    """The driver needs Spark; whoever only wants a broker does not wait for its import."""
    if name in _NEEDS_SPARK:
        return getattr(importlib.import_module(_NEEDS_SPARK[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
