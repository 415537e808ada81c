"""The logger of tasks that come and go, which `everflow run` always shows, and its short lists.

Layers from the assignment to the runtime report to it: who came and went, what moves where and why,
what is waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

LOGGER = "everflow.moves"
moves = logging.getLogger(LOGGER)
"""INFO: what moved, or what is waited for. WARNING: what an operator may have to look at."""

ABOUT_ASSIGNMENT = {"about": "assignment"}
"""``extra=`` of lines about what moves where and why: the page keeps them apart."""

SHOWN = 5


def some(things: Iterable[object], shown: int = SHOWN) -> str:
    """``0_0, 0_1, 0_2, 0_3, 1_0 and 3 more``, in the order given; ``none`` of nothing."""
    texts = [str(thing) for thing in things]
    text = ", ".join(texts[:shown]) or "none"
    return f"{text} and {len(texts) - shown:,} more" if len(texts) > shown else text


def counted(number: int, noun: str) -> str:
    """``1 task``, ``8 tasks``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
