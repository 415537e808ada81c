"""Packs what runs in workers into one parcel; tells what cannot travel by node and user's line."""

from __future__ import annotations

from typing import Any

from everflow.topology.plan import ColumnsOp, PhysicalPlan
from everflow.travel.parcel import Parcel
from everflow.travel.refusals import TravelCheck


def packed(content: Any, plan: PhysicalPlan) -> Parcel:
    """``content``, whose functions and serdes are the plan's. The DSL has checked each of them, but
    a variable may hold something else by now. Raises TopologyError naming function, variable and
    line."""
    try:
        return Parcel.of(content)
    except Exception:
        check = TravelCheck()
        for op in (*plan.times, *plan.ops):
            if not isinstance(op, ColumnsOp):
                check.require(vars(op), getattr(op, "op", op.name), getattr(op, "where", None))
        raise
