"""What the clients of others say in logs.

librdkafka's own log lines are on the logger ``everflow.kafka.client``.

By itself the client writes them to stderr, among them a line for every refused connection while a
broker restarts. What people must know comes as an exception or as a line of everflow's own; these
are for debugging, so they count as DEBUG whatever the client calls them.

kafka-python says at DEBUG which requests it sends, whole, as they are and as bytes, and an admin
client's settings: the password or the token among them.
"""

from __future__ import annotations

import logging

client_log = logging.getLogger("everflow.kafka.client")

UNPOLLED = {"log_level": 2}
"""For clients that nobody polls: their lines would pile up, so they keep to what is critical."""


def _demote(record: logging.LogRecord) -> bool:
    record.levelno, record.levelname = logging.DEBUG, "DEBUG"
    return client_log.isEnabledFor(logging.DEBUG)


client_log.addFilter(_demote)


def hide_credentials() -> None:
    """From now on kafka-python does not say how it comes in. Idempotent."""
    for name in ("kafka.net.connection", "kafka.protocol.parser", "kafka.admin.client"):
        logging.getLogger(name).addFilter(_without_credentials)


def _without_credentials(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(map(_shown, record.args))
    elif isinstance(record.args, dict):  # one argument, a client's configuration
        record.args = {key: "..." if _secret(key) else one for key, one in record.args.items()}
    return True


def _shown(said: object) -> object:
    if isinstance(said, bytes | bytearray | memoryview):  # a request as it is sent
        return f"{len(said)} bytes"
    kind = type(said).__name__
    return f"{kind}(...)" if kind.startswith("Sasl") else said


def _secret(key: str) -> bool:
    return key.startswith(("sasl_", "ssl_")) and key != "sasl_mechanism"
