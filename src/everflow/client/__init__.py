"""A client of the query service: reads stores of a running application from any process.

`query_client` has `QueryClient`, `connections` what it asks by, `key_forms` what keys are in JSON,
which the service reads, too. `direct` is for commands and loops: it asks a host past any proxy. May
import layer 0 and the standard library; knows no broker, no Spark and no runtime.
"""

from everflow.client.connections import QueryRefusedError, QueryUnavailableError
from everflow.client.query_client import KeyOwner, QueryClient, StoreInfo

__all__ = [
    "KeyOwner",
    "QueryClient",
    "QueryRefusedError",
    "QueryUnavailableError",
    "StoreInfo",
]
