"""Loads the assignor that ``task.assignor.class`` names (KIP-924), or everflow's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from everflow.assignment import assignor as everflow_assignor
from everflow.assignment.api import decide_with
from everflow.assignment.cluster_state import Assignment, ClusterState
from everflow.errors import ConfigError
from everflow.membership.own_code import OwnCode

KEY = "task.assignor.class"


def decision(path: str, patience_s: float = 10.0) -> Callable[[ClusterState], Assignment]:
    """What the leader decides with. ``path`` is ``module:Class`` or, as in Java, ``module.Class``;
    empty: everflow's own.

    An own one gets ``patience_s`` seconds for each assignment (`membership.own_code`).

    Raises ConfigError if there is no such class, if it cannot be made without arguments, or if it
    is not an assignor.
    """
    if not path:
        return everflow_assignor.assign
    found = _loaded(path)
    try:
        made = found() if isinstance(found, type) else found
    except Exception as failure:
        raise ConfigError(
            f"{KEY}: {path} could not be made without arguments: {failure!r}"
        ) from failure
    _require_methods(path, made)
    return decide_with(made, OwnCode(patience_s).run)  # type: ignore[arg-type]


def check_assignor(path: str) -> None:
    """ConfigError if there is no such class or it is no assignor; it is not made yet. For before
    the seconds that Spark takes."""
    if path:
        _require_methods(path, _loaded(path))


def _loaded(path: str) -> object:
    module_name, separator, name = path.partition(":")
    if not separator:
        module_name, _, name = path.rpartition(".")
    if not module_name or not name:
        raise ConfigError(
            f"{KEY} = {path!r} cannot be loaded: it names no class in a module. Write module:Class."
        )
    try:
        found: object = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as failure:
        raise ConfigError(
            f"{KEY} = {path!r} cannot be loaded: {failure}. Write module:Class."
        ) from failure
    except Exception as failure:
        raise ConfigError(
            f"{KEY} = {path!r}: its module fails when it is imported: {failure!r}"
        ) from failure
    return found


def _require_methods(path: str, assignor: object) -> None:
    missing = [
        method
        for method in ("assign", "on_assignment_computed")
        if not callable(getattr(assignor, method, None))
    ]
    if missing:
        raise ConfigError(
            f"{KEY}: {path} has no {' and no '.join(missing)}; see "
            f"everflow.assignment.api.TaskAssignor."
        )
