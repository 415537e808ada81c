"""Tells an outage of what the user's code asks (a schema registry, say) from a bad record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from everflow.handlers.response import ErrorHandlerContext, ExceptionHandler, Response

PASSING_STATUS = frozenset({401, 403, 407, 408, 425, 429})
"""HTTP answers below 500 that say nothing of the record: credentials that have run out, too many
requests."""
_STATUS = ("status_code", "http_status_code", "code", "status")
"""Under which name the clients' errors, or their ``response``, keep it."""


def is_outage(error: BaseException) -> bool:
    """Whether the record is not at fault: nobody answered, or the answer was 401, 403, 407, 408,
    425, 429 or 5xx. The errors that it came from are looked at, too."""
    return any(map(_passing, chain(error)))


@dataclass(frozen=True)
class RetryOutages:
    """A handler that has a micro-batch run again where `is_outage`, and asks another one about
    everything else."""

    otherwise: ExceptionHandler

    def __call__(self, context: ErrorHandlerContext, error: BaseException) -> Response:
        """See `ExceptionHandler`."""
        return Response.RETRY if is_outage(error) else self.otherwise(context, error)


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that it came from."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _passing(error: BaseException) -> bool:
    status = _status(error)
    if status is not None:
        return status in PASSING_STATUS or 500 <= status < 600
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    # Those of requests, urllib and httpx say it by their class alone.
    return type(error).__name__ in ("URLError", "ConnectError", "ConnectTimeout", "ReadTimeout")


def _status(error: BaseException) -> int | None:
    for source in (error, getattr(error, "response", None)):
        for name in _STATUS:
            value = getattr(source, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and 100 <= value < 600:
                return value
    return None
