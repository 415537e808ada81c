"""What settings name as handlers, and what tells an outage from a bad record."""

from __future__ import annotations

from typing import Any

import pytest

from everflow import ErrorHandlerContext, Response, RetryOutages, StreamsConfig
from everflow.errors import ConfigError
from everflow.handlers import Handlers, dead_letter_and_continue, is_outage

CONTEXT = ErrorHandlerContext(
    stage="processing",
    topic="in",
    partition=0,
    offset=7,
    timestamp=1,
    headers=(),
    source_raw_key=None,
    source_raw_value=b"v",
    processor_node_id="parse",
    task_id="0_0",
    attempt=0,
)


class Answer(Exception):
    """As clients of registries raise it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status_code = status


def outage_behind() -> Exception:
    error = ValueError("cannot read the value")
    error.__cause__ = ConnectionRefusedError("nobody there")
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionResetError("gone"), True),
        (TimeoutError("no answer"), True),
        (Answer(401), True),
        (Answer(429), True),
        (Answer(503), True),
        (Answer(404), False),
        (Answer(422), False),
        (outage_behind(), True),
        (ValueError("no number"), False),
        (FileNotFoundError("no such file"), False),
    ],
)
def test_an_outage_is_told_from_a_bad_record(error: Exception, expected: bool) -> None:
    assert is_outage(error) is expected
    answer = RetryOutages(dead_letter_and_continue)(CONTEXT, error)
    assert answer is (Response.RETRY if expected else Response.DEAD_LETTER)


def test_what_they_answer_with_and_without_a_topic() -> None:
    found = {
        (setting, topic): Handlers.of(topic, {"processing": setting}).answer(CONTEXT, ValueError())
        for setting in ("dead-letter", "continue", "fail")
        for topic in ("dead", None)
    }
    assert found == {
        ("dead-letter", "dead"): Response.DEAD_LETTER,
        ("dead-letter", None): Response.FAIL,
        ("continue", "dead"): Response.DEAD_LETTER,
        ("continue", None): Response.CONTINUE,
        ("fail", "dead"): Response.FAIL,
        ("fail", None): Response.FAIL,
    }


@pytest.mark.parametrize(
    "name",
    [
        "org.apache.kafka.streams.errors.LogAndContinueExceptionHandler",
        "LogAndContinueProcessingExceptionHandler",
    ],
)
def test_javas_names_mean_the_same(name: str) -> None:
    handlers = Handlers.of(None, {"processing": name})
    assert handlers.answer(CONTEXT, ValueError()) is Response.CONTINUE


@pytest.mark.parametrize("given", ["skip", 3, {"parse": "skip"}])
def test_what_is_no_handler_is_told_with_what_there_is(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"processing\.exception\.handler.*(dead-letter|text)"):
        StreamsConfig(
            application_id="app", bootstrap_servers="h:1", processing_exception_handler=given
        )


def test_a_handler_that_cannot_be_loaded_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no_such_module_here:name.*cannot be loaded"):
        Handlers.of(None, {"processing": "no_such_module_here:name"})


def test_a_handler_by_its_name() -> None:
    name = "everflow.handlers:log_and_continue"
    assert (
        Handlers.of(None, {"processing": name}).answer(CONTEXT, ValueError()) is Response.CONTINUE
    )
