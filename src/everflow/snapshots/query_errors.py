"""What a query of a store may be refused with; each says where the content is and what to do."""

from __future__ import annotations

from everflow.errors import EverflowError


class StoreNotFoundError(EverflowError, code="EF-NO-STORE"):
    """The topology has no store of this name; the message lists the stores it has."""


class StoreKindError(EverflowError, AttributeError, code="EF-STORE-KIND"):
    """This kind of store has no such query (`fetch` of a key-value store, `range` of a window
    store)."""


class InvalidStateStoreError(EverflowError, code="EF-STATE-UNAVAILABLE"):
    """The store cannot be read on this instance now (Kafka Streams' InvalidStateStoreException). If
    the instance does not run, or has no part of the store, this class itself is raised, otherwise
    a subclass.
    """


class StateMovingError(InvalidStateStoreError, code="EF-STATE-MOVING"):
    """The store's task is being migrated or restored. Retry shortly; request the key's metadata
    again before, because another instance may have the key then."""


class StateElsewhereError(InvalidStateStoreError, code="EF-STATE-ELSEWHERE"):
    """Another instance has the key's partition; ``host`` is that instance's address, if known.

    Attributes: partition; host: the owner's ``application.server``, None where it has none or is
    not known.
    """

    def __init__(self, message: str, *, partition: int, host: str | None) -> None:
        super().__init__(message)
        self.partition, self.host = partition, host


class StaleStateError(InvalidStateStoreError, code="EF-STATE-STALE"):
    """The replica on this instance lags its changelog by more than the query allows.

    Attributes: partition; lag and max_lag in offsets of the changelog.
    """

    def __init__(self, message: str, *, partition: int, lag: int, max_lag: int) -> None:
        super().__init__(message)
        self.partition, self.lag, self.max_lag = partition, lag, max_lag
