"""The handlers of an application: what its settings name, and what they answer."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from everflow.errors import ConfigError, FatalError
from everflow.handlers.outages import RetryOutages
from everflow.handlers.response import (
    STAGES,
    ErrorHandlerContext,
    ExceptionHandler,
    Response,
)
from everflow.user_program import error_text, shown


def log_and_fail(context: ErrorHandlerContext, error: BaseException) -> Response:
    """Kafka Streams' LogAndFail: the instance stops with the error."""
    return Response.FAIL


def log_and_continue(context: ErrorHandlerContext, error: BaseException) -> Response:
    """Kafka Streams' LogAndContinue: the record is left out, and is a dead letter where there is a
    topic for them."""
    return Response.CONTINUE


def dead_letter_and_continue(context: ErrorHandlerContext, error: BaseException) -> Response:
    """The record is a dead letter; where there is no topic for them, the instance stops."""
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
        """The node's own, else that of the others."""
        return self.others if node is None else self.own.get(node, self.others)

    def __call__(self, context: ErrorHandlerContext, error: BaseException) -> Response:
        """See `ExceptionHandler`."""
        return self.of(context.processor_node_id)(context, error)


def handler_setting(given: object) -> str | None:
    """What is wrong with the value of a setting that names a handler; None for a good one."""
    if isinstance(given, Mapping):
        return next(filter(None, map(handler_setting, given.values())), None)
    if callable(given) and not isinstance(given, type):
        return None
    text = str(given)
    if _built_in(text) or (isinstance(given, str) and ":" in text):
        return None
    return (
        f"is no handler: it is one of {', '.join(BUILT_IN)}, module:name of a function, or the "
        f"function itself (context, error) -> everflow.Response; or a dict of them by the names of "
        f"sources and operators, {OTHERS!r} for all others"
    )


def handler_of(key: str, given: object) -> ExceptionHandler:
    """The handler that the setting ``key`` names. ConfigError where it cannot be loaded."""
    if isinstance(given, Mapping):
        made = {str(node): handler_of(key, one) for node, one in given.items()}
        others = made.pop(OTHERS, dead_letter_and_continue)
        return ByNode(made, others)
    if not isinstance(given, str):
        return given  # type: ignore[return-value]
    if name := _built_in(given):
        return BUILT_IN[name]
    module, _, path = given.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
        loaded: ExceptionHandler = found() if isinstance(found, type) else found
    except Exception as failure:
        raise ConfigError(
            f"{key} = {given!r} cannot be loaded: {error_text(failure)}. Write module:name of a "
            f"function, or of a class without arguments."
        ) from failure
    return loaded


def _built_in(text: str) -> str | None:
    name = text.replace("$", ".").rpartition(".")[2]
    return text if text in BUILT_IN else _KAFKA_STREAMS.get(name)


@dataclass(frozen=True)
class Handlers:
    """Picklable. ``topic``: of the dead letters; None: there is none. ``by_stage``: left out, a
    record is a dead letter."""

    topic: str | None = None
    by_stage: Mapping[str, ExceptionHandler] = field(default_factory=dict)

    @staticmethod
    def of(topic: str | None, settings: Mapping[str, object]) -> Handlers:
        """``settings``: by stage. ConfigError for a handler that cannot be loaded."""
        return Handlers(
            topic,
            {
                stage: handler_of(f"{stage}.exception.handler", settings[stage])
                for stage in STAGES
                if stage in settings
            },
        )

    def require_nodes(self, names: Collection[str]) -> None:
        """ConfigError for a handler of a node that is none of these."""
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
        """Whether a record that fails there need not stop the instance: else nobody has to be
        asked."""
        handler = self._handler(stage, node)
        if handler is log_and_fail:
            return False
        return not (handler is dead_letter_and_continue and self.topic is None)

    def answer(self, context: ErrorHandlerContext, error: BaseException) -> Response:
        """FAIL, CONTINUE, DEAD_LETTER (only where there is a topic) or RETRY. FatalError for what
        is wrong with the handler."""
        handler = self._handler(context.stage, context.processor_node_id)
        try:
            response = handler(context, error)
        except Exception as failure:
            raise FatalError(
                f"The {context.stage} exception handler failed itself, on "
                f"{context.subject} ({error_text(error)}): "
                f"{error_text(failure)}"
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
