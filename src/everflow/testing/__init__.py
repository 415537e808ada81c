"""The test kit, for users too: a real broker as a context manager, and waiting for conditions."""

from __future__ import annotations

from everflow.testing.broker import EmbeddedBroker
from everflow.testing.waiting import wait_until

__all__ = ["EmbeddedBroker", "wait_until"]
