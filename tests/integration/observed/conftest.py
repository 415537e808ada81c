"""Topics and an application for each test, as those of the lifecycle tests."""

from __future__ import annotations

from integration.lifecycle.conftest import app, cluster

__all__ = ["app", "cluster"]
