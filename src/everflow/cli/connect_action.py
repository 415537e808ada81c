"""What ``everflow connect`` can do."""

from __future__ import annotations

from enum import Enum


class Action(str, Enum):
    list = "list"
    status = "status"
    pause = "pause"
    resume = "resume"
    restart = "restart"
