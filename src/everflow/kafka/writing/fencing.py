"""Ends what is still written under transactional ids that are somebody else's now."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError

from everflow.errors import EverflowError, RetriableError
from everflow.kafka.broker_link import BrokerLink, LinkLostError, RefusedError
from everflow.kafka.errors import classify
from everflow.kafka.writing.transaction import Failure, OutOfTimeError, Transactions, broker_code
from everflow.kafka.writing.writer_settings import writer_settings


def fence(config: Mapping[str, Any], transactional_id: str, timeout_s: float) -> None:
    """End whatever still writes under ``transactional_id``: raise its epoch, abort its open
    transaction.

    Afterwards a zombie's writes and commits are refused, and readers of its partitions are no
    longer held back. Idempotent; safe from any thread. Raises as `fence_all`.
    """
    fence_all(config, [transactional_id], timeout_s)


def fence_all(
    config: Mapping[str, Any], transactional_ids: Collection[str], timeout_s: float
) -> None:
    """`fence` all of these ids at the same time: while a broker still aborts one's transaction, the
    others go on. Blocks until all were tried.

    Raises:
        RetriableError: the broker did not answer within ``timeout_s`` seconds.
        FatalError: it refused one (the first one's reason).
    """
    if not transactional_ids:
        return
    deadline = time.monotonic() + timeout_s
    settings = writer_settings(config)
    link = BrokerLink(settings.connection, settings.answer_timeout_ms, timeout_s)
    failures: list[EverflowError] = []

    async def end(transactional_id: str) -> None:
        try:
            transactions = Transactions(link, transactional_id, settings.transaction_timeout_ms)
            await transactions.start(deadline)
        except (RefusedError, LinkLostError, OutOfTimeError) as failure:
            failures.append(_told(failure, f"fencing transactional.id {transactional_id}"))

    async def end_all() -> None:
        under_way = [link.started(partial(end, name)) for name in sorted(transactional_ids)]
        for one in under_way:
            await one

    try:
        link.run(end_all)
    finally:
        link.close()
    if failures:
        raise failures[0]


def _told(failure: Failure, doing: str) -> EverflowError:
    code = broker_code(failure)
    if code is not None:
        return classify(KafkaError(code), doing)
    return RetriableError(f"{doing}: {failure}")
