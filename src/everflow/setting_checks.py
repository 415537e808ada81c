"""Checks of settings: each says of a value what is wrong with it, None where nothing is. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

Check = Callable[[Any], str | None]

INT32, INT64 = 2**31 - 1, 2**63 - 1
LONGEST_MS = 10 * 365 * 86_400_000
"""Ten years: Python cannot wait for longer than `threading.TIMEOUT_MAX`, and times add up."""


@dataclass(frozen=True)
class Between:
    """A check: a number from ``minimum`` to ``maximum``, both included."""

    minimum: int
    maximum: int

    def __call__(self, value: Any) -> str | None:
        if value < self.minimum:
            return f"must be at least {self.minimum}"
        return None if value <= self.maximum else f"must be at most {self.maximum}"


class Replicas(Between):
    """A check: how often a partition is there, or -1 for the broker's default."""

    def __call__(self, value: Any) -> str | None:
        if value == 0:
            return "must be at least 1, or -1 for the broker's default"
        return super().__call__(value)


@dataclass(frozen=True)
class OneOf:
    """A check: one of ``choices``. ``why`` is said of others."""

    choices: tuple[str, ...]
    why: str = ""

    def __call__(self, value: Any) -> str | None:
        listed = f"must be one of {', '.join(self.choices)}{self.why}"
        return None if value in self.choices else listed


def int32(minimum: int) -> Check:
    """A number with 32 bits in Kafka's protocol or configuration."""
    return Between(minimum, INT32)


def time_ms(minimum: int) -> Check:
    """A duration in ms that only everflow waits for."""
    return Between(minimum, LONGEST_MS)


def printable(value: Any) -> str | None:
    return None if value.isprintable() else "must hold no control characters"


def kafka_name(longest: int, why: str = "") -> Check:
    """Kafka's rule for names of topics (`Topic.validate`), and ``group.instance.id``."""

    def check(value: Any) -> str | None:
        if value in (".", ".."):
            return "must be a name: '.' and '..' are folders"
        if re.fullmatch(rf"[A-Za-z0-9._-]{{1,{longest}}}", value):
            return None
        allowed = "may hold letters, digits, '.', '_' and '-' only"
        return f"{allowed}, at least 1 and at most {longest}{why}"

    return check


def _wrong_address(address: str) -> str | None:
    """The fault of ``host:port``; IPv6 is in brackets."""
    scheme, separator, rest = address.partition("://")
    host, _, port = address.rpartition(":")
    if not address:
        return "one of them is empty"
    if separator:
        return (
            f"leave {scheme}:// out and write {rest!r} (how to talk to a broker is "
            f"security.protocol)"
        )
    if re.fullmatch(r"[0-9A-Fa-f.]*(?::[0-9A-Fa-f.]*){2,}", address):
        return f"{address!r} is IPv6, which takes brackets: '[::1]:9092'"
    if not host or not port:
        return (
            f"{address!r} has no {'host' if port and ':' in address else 'port'}: write "
            f"'{(host or address).rstrip(':')}:9092'"
        )
    if not re.fullmatch(r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+", host):
        return f"{host!r} is no host"
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65_535:
        return f"the port of {address!r} is not a number from 1 to 65535"
    return None


def broker_addresses(value: Any) -> str | None:
    if not value:
        return "must not be empty"
    problem = next(filter(None, map(_wrong_address, value.split(","))), None)
    return problem and f"must be host:port of each broker, separated by commas: {problem}"


def host_and_port(value: Any) -> str | None:
    """Empty, or an address as others can reach it."""
    if not value or not _wrong_address(value):
        return None
    return (
        "must be host:port, at which the other instances reach this one's own service (empty: none)"
    )


def listening(value: Any) -> str | None:
    """Empty, or an address of this machine; port 0: any that is free."""
    if not value:
        return None
    address = f"{value[:-2]}:1" if value.endswith(":0") else value
    if not _wrong_address(address):
        return None
    return (
        "must be host:port of this machine, as in 0.0.0.0:9464 (all its addresses), or empty: "
        "nothing listens"
    )


def host_names(value: Any) -> str | None:
    """Names of hosts, separated by commas, without ports; ``*``."""
    names = [name.strip() for name in str(value).split(",")] if value else []
    wrong = next((name for name in names if not _HOST_NAME.fullmatch(name)), None)
    said = "must be names of hosts, separated by commas, without http:// and ports, or *"
    return None if wrong is None else f"{said}: {wrong!r} is none"


def http_url(value: Any) -> str | None:
    """Empty, or a URL with a host."""
    if not value:
        return None
    found = urlsplit(str(value))
    if found.scheme in ("http", "https") and found.netloc:
        return None
    return "must be a URL, as in http://collector:4318/v1/metrics, or empty: nothing is sent"


def path(value: Any) -> str | None:
    if not value:
        return "must not be empty (left out, it is a folder of your home)"
    return "cannot be a path: it holds a NUL" if "\0" in value else None


TIMESTAMP_EXTRACTORS = (
    "FailOnInvalidTimestamp",
    "LogAndSkipOnInvalidTimestamp",
    "UsePartitionTimeOnInvalidTimestamp",
    "WallclockTimestampExtractor",
)


def timestamp_extractor(value: object) -> str | None:
    """One of `TIMESTAMP_EXTRACTORS`, with or without a module or Java's package before it."""
    name = str(value).replace(":", ".").rpartition(".")[2]
    if name in TIMESTAMP_EXTRACTORS:
        return None
    return (
        f"names no timestamp extractor: it is one of {', '.join(TIMESTAMP_EXTRACTORS)}. A "
        f"function or a Column is given to its source, as in stream('orders', timestamp=...)"
    )


BY_DURATION = "by_duration:"
_RESETS = ("earliest", "latest", "none")
_SECRET = re.compile(
    r"(?i)password|passphrase|secret|jaas\.?_?config|oauthbearer[._]config|key[._]pem$|keystore[._]key$"
)
_NAMES_ONLY = re.compile(r"(?i)[._](file|location|url)$|name$")
_HOST_NAME = re.compile(r"\*|[A-Za-z0-9._-]+")
_ISO = re.compile(
    r"P(?=\d|T\d)(?:(\d{1,9})D)?"
    r"(?:T(?=\d)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,15})(?:\.(\d{1,3})0*)?S)?)?",
    re.IGNORECASE | re.ASCII,
)


def offset_reset(value: object) -> str | None:
    """The start of an input without a committed offset (KIP-1106)."""
    text = str(value)
    if text in _RESETS or reset_duration_ms(text) is not None:
        return None
    return (
        f"is none of {', '.join(_RESETS)} and {BY_DURATION}DURATION, whose duration is as in "
        f"{BY_DURATION}PT12H or {BY_DURATION}P1DT6H"
    )


def reset_duration_ms(policy: str) -> int | None:
    """The duration of ``by_duration:...``; None for another policy, or parts of a ms."""
    found = _ISO.fullmatch(policy.removeprefix(BY_DURATION))
    if not policy.startswith(BY_DURATION) or found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:4])
    ms = int((found.group(5) or "").ljust(3, "0"))
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + ms


def is_secret(key: str) -> bool:
    """True if the setting's value is secret, and not just the place of a secret."""
    return _SECRET.search(key) is not None and _NAMES_ONLY.search(key) is None
