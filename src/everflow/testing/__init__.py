"""The test kit, for users too: a driver without a broker, a real broker, waits for conditions.

What is here is public. The driver is in `topology_test_driver`, `topics` and `store_views`;
`broker` has one broker and three, `kafka_proxy` brings faults between them and their clients,
`schema_registry` keeps schemas.
May import everything; nothing below imports it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from everflow.testing.broker import EmbeddedBroker, EmbeddedCluster
from everflow.testing.broker_security import BrokerSecurity
from everflow.testing.waiting import wait_until

if TYPE_CHECKING:
    from everflow.testing.kafka_proxy import KafkaProxy, WireFault
    from everflow.testing.schema_registry import SchemaRegistry
    from everflow.testing.store_views import (
        KeyValueView,
        SessionView,
        ValueAndTimestamp,
        VersionedView,
        WindowView,
    )
    from everflow.testing.topics import InputTopic, OutputTopic, TestRecord
    from everflow.testing.topology_test_driver import TopologyTestDriver

__all__ = [
    "BrokerSecurity",
    "EmbeddedBroker",
    "EmbeddedCluster",
    "InputTopic",
    "KafkaProxy",
    "KeyValueView",
    "OutputTopic",
    "SchemaRegistry",
    "SessionView",
    "TestRecord",
    "TopologyTestDriver",
    "ValueAndTimestamp",
    "VersionedView",
    "WindowView",
    "WireFault",
    "wait_until",
]

_LATER = {
    **dict.fromkeys(("WireFault", "KafkaProxy"), "everflow.testing.kafka_proxy"),
    **dict.fromkeys(("InputTopic", "OutputTopic", "TestRecord"), "everflow.testing.topics"),
    **dict.fromkeys(
        ("KeyValueView", "SessionView", "ValueAndTimestamp", "VersionedView", "WindowView"),
        "everflow.testing.store_views",
    ),
    "SchemaRegistry": "everflow.testing.schema_registry",
    "TopologyTestDriver": "everflow.testing.topology_test_driver",
}


def __getattr__(name: str) -> Any:
    """Import on first use: the driver needs Spark, the proxy kafka-python; a broker neither yet."""
    if name in _LATER:
        try:
            return getattr(importlib.import_module(_LATER[name]), name)
        except Exception as error:
            from everflow.hidden_modules import raise_explained

            raise_explained(f"testing.{name}", error)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
