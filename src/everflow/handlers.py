"""Exception handlers: what happens to a record that cannot be decoded, processed or written.

As in Kafka Streams (KIP-1033, KIP-1034; note 041). Handlers run in the Python workers, and in the
test driver.
"""

from __future__ import annotations

import errno
import importlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from typing import Any, Protocol

from everflow.errors import ConfigError, FatalError
from everflow.user_program import ANY_FAILURE, error_text, shown

DESERIALIZATION = "deserialization"
PROCESSING = "processing"
PRODUCTION = "production"
STAGES = (DESERIALIZATION, PROCESSING, PRODUCTION)


class Response(Enum):
    """What happens to a record that failed: ``FAIL`` raises the error, which by default stops the
    instance; ``CONTINUE`` skips the record; ``DEAD_LETTER`` skips it and writes it to the dead
    letter topic; ``RETRY`` runs its micro-batch again. A skipped record has no output and changes
    no store.

    A skipped record or punctuator's call is counted in ``dropped-records-total``. A dead letter is
    written to the topic of ``errors.dead.letter.queue.topic.name`` in the transaction of its
    micro-batch; without such a topic ``DEAD_LETTER`` is FAIL. ``RETRY`` ends with
    ``task.timeout.ms``. A punctuator's call has no record, so it is never a dead letter.
    """

    FAIL = "fail"
    CONTINUE = "continue"
    DEAD_LETTER = "dead-letter"
    RETRY = "retry"


@dataclass(frozen=True, kw_only=True)
class ErrorHandlerContext:
    """The record that failed, or the failed call of a punctuator, which has no record.

    Attributes:
        stage: ``deserialization``, ``processing`` or ``production``.
        topic, partition, offset, timestamp (ms), headers: of the input record; for a punctuator's
            call None, -1, -1, the time of the call, and no headers.
        source_raw_key, source_raw_value: the bytes of the input record.
        processor_node_id: the node that failed; None if it is not known.
        task_id: the task that reads the record, ``0_3``.
        attempt: how often the micro-batch was run before.
    """

    stage: str
    topic: str | None
    partition: int
    offset: int
    timestamp: int
    headers: Sequence[tuple[str, bytes | None]]
    source_raw_key: bytes | None
    source_raw_value: bytes | None
    processor_node_id: str | None
    task_id: str
    attempt: int

    @property
    def subject(self) -> str:
        """A text for logs: topic, partition and offset of the record; time and node of the call."""
        if self.topic is not None:
            return f"record {self.topic}-{self.partition}@{self.offset}"
        return f"the clock's call at {self.timestamp} ms in node {self.processor_node_id}"


class ExceptionHandler(Protocol):
    """A function ``(context, error)``, or a callable object, that returns a `Response`. It is
    serialised for the Python workers: each worker calls its own copy, on one thread."""

    def __call__(self, context: ErrorHandlerContext, error: BaseException) -> Response:
        """Decides about a record, which may be passed again. An error raised here stops the
        instance."""


PASSING_STATUS = frozenset({401, 403, 407, 408, 425, 429})
"""HTTP answers below 500 that say nothing of the record, as too many requests."""
_STATUS = ("status_code", "http_status_code", "code", "status")


def is_outage(error: BaseException) -> bool:
    """True if the record is not at fault: no answer, `PASSING_STATUS` or 5xx, a full or failing
    disk, a database that is away or locked. Causes count, too."""
    return any(map(_passing, chain(error)))


@dataclass(frozen=True)
class RetryOutages:
    """A handler that returns RETRY if a service does not answer (a connection error or time-out) or
    answers with HTTP 401, 403, 407, 408, 425, 429 or 5xx, if a disk is full, or if a database is
    away or locked (``OperationalError``); else calls ``otherwise``."""

    otherwise: ExceptionHandler

    def __call__(self, context: ErrorHandlerContext, error: BaseException) -> Response:
        return Response.RETRY if is_outage(error) else self.otherwise(context, error)


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that it came from."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


_PASSING_CLASSES = frozenset(
    {
        *("URLError", "ConnectError", "ConnectTimeout", "ReadTimeout", "RemoteProtocolError"),
        *("ClientConnectorError", "ClientOSError", "ServerDisconnectedError"),
        "TimeoutError",  # asyncio's, before Python 3.11
    }
)
"""Of requests, urllib, httpx and aiohttp, which say it by their class alone."""
_PASSING_ERRNO = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT)
)
_SQLITE_PASSING = frozenset((5, 6, 10, 13, 14))
"""Busy, locked, input or output, full, cannot open: SQLite alone calls a wrong statement
operational, too."""


def _passing(error: BaseException) -> bool:
    status = _status(error)
    if status is not None:
        return status in PASSING_STATUS or 500 <= status < 600
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if isinstance(error, OSError) and error.errno in _PASSING_ERRNO:
        return True
    name = type(error).__name__
    if name == "OperationalError":  # of the DB API (PEP 249)
        code = getattr(error, "sqlite_errorcode", None)
        return code is None or code & 0xFF in _SQLITE_PASSING
    return name in _PASSING_CLASSES


def _status(error: BaseException) -> int | None:
    for source in (error, getattr(error, "response", None)):
        for name in _STATUS:
            value = getattr(source, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and 100 <= value < 600:
                return value
    return None


def log_and_fail(context: ErrorHandlerContext, error: BaseException) -> Response:
    """Kafka Streams' LogAndFail: the instance stops with the error."""
    return Response.FAIL


def log_and_continue(context: ErrorHandlerContext, error: BaseException) -> Response:
    """Kafka Streams' LogAndContinue: the record is skipped, and is a dead letter if there is a
    topic for dead letters."""
    return Response.CONTINUE


def dead_letter_and_continue(context: ErrorHandlerContext, error: BaseException) -> Response:
    """The record is sent to the dead letter topic; if there is none, the instance stops."""
    return Response.DEAD_LETTER


OTHERS = "*"
"""In a dict of handlers by node: of every other one."""
BUILT_IN: Mapping[str, ExceptionHandler] = {
    "dead-letter": dead_letter_and_continue,
    "fail": log_and_fail,
    "continue": log_and_continue,
    "retry-outages": RetryOutages(dead_letter_and_continue),
}
_KAFKA_STREAMS = {
    "LogAndFailExceptionHandler": "fail",
    "LogAndContinueExceptionHandler": "continue",
    "LogAndFailProcessingExceptionHandler": "fail",
    "LogAndContinueProcessingExceptionHandler": "continue",
    "DefaultProductionExceptionHandler": "fail",
}


@dataclass(frozen=True)
class ByNode:
    """Handlers of sources and operators, by the names of their nodes."""

    own: Mapping[str, ExceptionHandler]
    others: ExceptionHandler

    def of(self, node: str | None) -> ExceptionHandler:
        return self.others if node is None else self.own.get(node, self.others)

    def __call__(self, context: ErrorHandlerContext, error: BaseException) -> Response:
        return self.of(context.processor_node_id)(context, error)


def handler_setting(setting: object) -> str | None:
    """The fault of a setting's value that names a handler; None for a good one."""
    if isinstance(setting, Mapping):
        return next(filter(None, map(handler_setting, setting.values())), None)
    if callable(setting) and not isinstance(setting, type):
        return None
    text = str(setting)
    if _built_in(text) or (isinstance(setting, str) and ":" in text):
        return None
    return (
        f"is no handler: it is one of {', '.join(BUILT_IN)}, module:name of a function, or the "
        f"function itself (context, error) -> everflow.Response; or a dict of them by the names of "
        f"sources and operators, {OTHERS!r} for all others"
    )


def handler_of(key: str, setting: object) -> ExceptionHandler:
    """The handler that the setting ``key`` names. ConfigError where it cannot be loaded."""
    if isinstance(setting, Mapping):
        made = {str(node): handler_of(key, one) for node, one in setting.items()}
        others = made.pop(OTHERS, dead_letter_and_continue)
        return ByNode(made, others)
    if not isinstance(setting, str):
        return setting  # type: ignore[return-value]
    if name := _built_in(setting):
        return BUILT_IN[name]
    module, _, path = setting.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
        loaded: ExceptionHandler = found() if isinstance(found, type) else found
    except Exception as failure:
        raise ConfigError(
            f"{key} = {setting!r} cannot be loaded: {error_text(failure)}. Write module:name of a "
            f"function, or of a class without arguments."
        ) from failure
    return loaded


def _built_in(text: str) -> str | None:
    name = text.replace("$", ".").rpartition(".")[2]
    return text if text in BUILT_IN else _KAFKA_STREAMS.get(name)


@dataclass(frozen=True)
class Handlers:
    """Picklable. ``topic``: the dead letter topic; None: there is none. ``by_stage``: handlers by
    stage; a stage without a handler sends its records to ``topic``."""

    topic: str | None = None
    by_stage: Mapping[str, ExceptionHandler] = field(default_factory=dict)

    @staticmethod
    def of(topic: str | None, settings: Mapping[str, object]) -> Handlers:
        """Makes handlers of ``settings``, by stage. Raises ConfigError for a handler that cannot be
        loaded."""
        return Handlers(
            topic,
            {
                stage: handler_of(f"{stage}.exception.handler", settings[stage])
                for stage in STAGES
                if stage in settings
            },
        )

    def require_nodes(self, names: Collection[str]) -> None:
        """Raises ConfigError if a node with a handler is not one of ``names``."""
        for stage, handler in self.by_stage.items():
            for node in handler.own if isinstance(handler, ByNode) else ():
                if node not in names:
                    near = get_close_matches(node, names, n=1)
                    hint = f" Did you mean {near[0]}?" if near else ""
                    raise ConfigError(
                        f"{stage}.exception.handler has a handler for {node!r}, but there is no "
                        f"such source or operator: `everflow describe` shows their names.{hint}"
                    )

    def may_continue(self, stage: str, node: str | None = None) -> bool:
        """True if a record that fails there need not stop the instance."""
        handler = self._handler(stage, node)
        if handler is log_and_fail:
            return False
        return not (handler is dead_letter_and_continue and self.topic is None)

    def answer(self, context: ErrorHandlerContext, error: BaseException) -> Response:
        """The handler's, DEAD_LETTER only where there is a topic. FatalError for its faults."""
        handler = self._handler(context.stage, context.processor_node_id)
        try:
            response = handler(context, error)
        except ANY_FAILURE as failure:
            raise FatalError(
                f"The {context.stage} exception handler failed itself, on {context.subject} "
                f"({error_text(error)}): {error_text(failure)}"
            ) from failure
        if not isinstance(response, Response):
            raise FatalError(
                f"The {context.stage} exception handler gave {shown(response)}, not an "
                f"everflow.Response, for {context.subject} ({error_text(error)})"
            )
        if response is Response.DEAD_LETTER and self.topic is None:
            return Response.FAIL
        if handler is log_and_continue and self.topic is not None:
            return Response.DEAD_LETTER
        return response

    def _handler(self, stage: str, node: str | None) -> ExceptionHandler:
        handler = self.by_stage.get(stage, dead_letter_and_continue)
        return handler.of(node) if isinstance(handler, ByNode) else handler
