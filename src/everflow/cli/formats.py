"""How commands write and read keys and values, and show results."""

from __future__ import annotations

from enum import Enum


class Format(str, Enum):
    """How bytes and text stand for one another on the command line."""

    string = "string"
    json = "json"
    int_ = "int"
    long = "long"
    double = "double"
    bytes = "bytes"


class WindowKind(str, Enum):
    """What stands behind the key of a windowed result."""

    time = "time"
    session = "session"


class Output(str, Enum):
    """Forms of a result."""

    text = "text"
    json = "json"
