"""Finds the cluster's open transactions and whose they are, by kafka-python's admin (KIP-664).

librdkafka has no such request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kafka.errors as client_errors
from kafka import KafkaAdminClient

from everflow.errors import RetriableError


def open_transactional_ids(
    bootstrap_servers: str, client: Mapping[str, Any], timeout_ms: int = 10_000
) -> set[str]:
    """Transactional ids with an ongoing transaction, over all brokers; ``client``: kafka-python
    keywords (security).

    Opens and closes a connection: for rare use. Raises RetriableError if the brokers do not answer
    or refuse.
    """
    try:
        admin = KafkaAdminClient(
            bootstrap_servers=bootstrap_servers.split(","),
            request_timeout_ms=timeout_ms,
            client_id="everflow-admin",
            **client,
        )
    except client_errors.KafkaError as failure:
        raise RetriableError(f"listing open transactions: {failure!r}") from failure
    try:
        found = admin.list_transactions(state_filters=["Ongoing"])
        return {
            str(listing.transactional_id) for listings in found.values() for listing in listings
        }
    except client_errors.KafkaError as failure:
        raise RetriableError(f"listing open transactions: {failure!r}") from failure
    finally:
        admin.close()
