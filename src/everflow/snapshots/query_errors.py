"""What a query of a store may be refused with; each says where the content is and what to do."""

from __future__ import annotations

from everflow.errors import EverflowError


class StoreNotFoundError(EverflowError, code="EF-NO-STORE"):
    """The topology has no such store; the message lists those it has."""


class StoreKindError(EverflowError, AttributeError, code="EF-STORE-KIND"):
    """A query that this kind of store does not have (`fetch` of a key-value store, `range` of a
    window store)."""


class InvalidStateStoreError(EverflowError, code="EF-STATE-UNAVAILABLE"):
    """The content cannot be read here now (Kafka Streams' InvalidStateStoreException); its
    subclasses say why.

    Raised itself where the instance does not run.
    """


class StateMovingError(InvalidStateStoreError, code="EF-STATE-MOVING"):
    """A task is being handed over or restored: the same query succeeds soon. Retry after asking for
    the metadata anew."""


class StateElsewhereError(InvalidStateStoreError, code="EF-STATE-ELSEWHERE"):
    """Another instance has the key or partition.

    Attributes: partition; host: the owner's ``application.server``, None where it has none or is
    not known.
    """

    def __init__(self, message: str, *, partition: int, host: str | None) -> None:
        super().__init__(message)
        self.partition, self.host = partition, host


class StaleStateError(InvalidStateStoreError, code="EF-STATE-STALE"):
    """The copy here lags further behind the changelog than the query allows.

    Attributes: partition; lag and max_lag in offsets of the changelog.
    """

    def __init__(self, message: str, *, partition: int, lag: int, max_lag: int) -> None:
        super().__init__(message)
        self.partition, self.lag, self.max_lag = partition, lag, max_lag
