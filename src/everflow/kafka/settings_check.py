"""Whether a Kafka client takes its settings: librdkafka checks names, values and what does not go together when a client is made,
before it connects to anything. So a client is made, without brokers, and closed at once (under a millisecond)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

ClientKind = Literal["producer", "consumer", "admin"]

_SILENT = {"log_level": 0}  # it would say that it has no brokers


def refusal(kind: ClientKind, settings: Mapping[str, Any]) -> str | None:
    """Why a client of this ``kind`` cannot be made of ``settings`` (librdkafka's keys), in librdkafka's words; None if it can.

    ``bootstrap.servers`` is left out: nothing is connected.
    """
    offline = {**_SILENT, **{key: value for key, value in settings.items() if key != "bootstrap.servers"}}
    try:
        if kind == "consumer":
            Consumer({"group.id": "everflow-settings-check", **offline}).close()
        elif kind == "producer":
            Producer(offline)  # nothing was produced: it ends with its last reference
        else:
            AdminClient(offline)
    except KafkaException as failure:
        error = failure.args[0]
        return (error.str() if hasattr(error, "str") else str(error)).strip()
    except (TypeError, ValueError) as failure:  # of a type that no setting has
        return str(failure)
    return None
