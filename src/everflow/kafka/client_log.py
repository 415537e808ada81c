"""librdkafka's own log lines, on the logger ``everflow.kafka.client``.

By itself the client writes them to stderr, among them a line for every refused connection while a
broker restarts. What people must know comes as an exception or as a line of everflow's own; these
are for debugging, so they count as DEBUG whatever the client calls them.
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
