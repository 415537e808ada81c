"""A client of the query service: reads stores of a running application from any process.

`query_client` has `QueryClient` and its connections, `key_forms` the JSON forms of keys,
which the service reads, too. `direct` is for commands and loops: it asks a host past any proxy. May
import layer 0 and the standard library; knows no broker, no Spark and no runtime.
"""

from everflow.client.query_client import (
    KeyOwner,
    QueryClient,
    QueryRefusedError,
    QueryUnavailableError,
    StoreInfo,
)

__all__ = [
    "KeyOwner",
    "QueryClient",
    "QueryRefusedError",
    "QueryUnavailableError",
    "StoreInfo",
]
