"""As the tests of whole instances have: topics and an application for every test."""

from integration.lifecycle.conftest import app, cluster

__all__ = ["app", "cluster"]
