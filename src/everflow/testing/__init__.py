"""The test kit, for users too: a driver without a broker, a real broker as a context manager, and waiting for conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everflow.testing.broker import EmbeddedBroker
from everflow.testing.waiting import wait_until

if TYPE_CHECKING:
    from everflow.testing.topology_test_driver import TopologyTestDriver

__all__ = ["EmbeddedBroker", "TopologyTestDriver", "wait_until"]


def __getattr__(name: str) -> Any:
    """The driver needs Spark; whoever only wants a broker does not wait for its import."""
    if name == "TopologyTestDriver":
        from everflow.testing.topology_test_driver import TopologyTestDriver

        return TopologyTestDriver
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
