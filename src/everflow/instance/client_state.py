"""States of an instance, as in Kafka Streams (`KafkaStreams.State`), with checked transitions."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Mapping

from everflow.errors import EverflowError, IllegalTransitionError
from everflow.logs import rebalance_log
from everflow.user_program import ListenerGuard

STATE = "state "


#  CREATED ──start──► REBALANCING ◄──tasks──► RUNNING
#     │                   │                     │
#     └───────────────────┼─────────────────────┘
#        close, a signal  │  a failure
#     PENDING_SHUTDOWN ◄──┴──► PENDING_ERROR
#             │                      │
#             ▼                      ▼
#        NOT_RUNNING               ERROR
class ClientState(enum.Enum):
    """States of an instance: CREATED -> REBALANCING <-> RUNNING; in a shutdown PENDING_SHUTDOWN ->
    NOT_RUNNING; after a failure PENDING_ERROR -> ERROR."""

    CREATED = "CREATED"
    REBALANCING = "REBALANCING"
    RUNNING = "RUNNING"
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    NOT_RUNNING = "NOT_RUNNING"
    PENDING_ERROR = "PENDING_ERROR"
    ERROR = "ERROR"


class IllegalStateError(EverflowError):
    """The state of the instance or driver does not allow this call; the message says what to do."""

    code = "EF-ILLEGAL-STATE"


_S = ClientState
CLIENT_TRANSITIONS: Mapping[ClientState, frozenset[ClientState]] = {
    _S.CREATED: frozenset({_S.REBALANCING, _S.PENDING_SHUTDOWN, _S.PENDING_ERROR}),
    _S.REBALANCING: frozenset({_S.RUNNING, _S.PENDING_SHUTDOWN, _S.PENDING_ERROR}),
    _S.RUNNING: frozenset({_S.REBALANCING, _S.PENDING_SHUTDOWN, _S.PENDING_ERROR}),
    _S.PENDING_SHUTDOWN: frozenset({_S.NOT_RUNNING}),
    _S.NOT_RUNNING: frozenset(),
    _S.PENDING_ERROR: frozenset({_S.ERROR}),
    _S.ERROR: frozenset(),
}
STOPPING = frozenset({_S.PENDING_SHUTDOWN, _S.NOT_RUNNING, _S.PENDING_ERROR, _S.ERROR})
ENDED = frozenset({_S.NOT_RUNNING, _S.ERROR})
LAST_STATES = (f"{STATE}PENDING_SHUTDOWN -> ", f"{STATE}PENDING_ERROR -> ")

StateListener = Callable[[ClientState, ClientState], None]


class StateMachine:
    """Any thread may ask for a change. The listener gets ``(new, old)``, one call at a time."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._state = ClientState.CREATED
        self.listener: StateListener | None = None
        self._guard = ListenerGuard("state listener")

    @property
    def state(self) -> ClientState:
        with self._lock:
            return self._state

    def to(self, state: ClientState) -> bool:
        """Change; False if it is the state already, or for a late event of an instance that ends.
        IllegalTransitionError for a step that there is not."""
        with self._lock:
            old = self._state
            if state is old or (old in STOPPING and state not in CLIENT_TRANSITIONS[old]):
                return False
            if state not in CLIENT_TRANSITIONS[old]:
                raise IllegalTransitionError(
                    f"An instance cannot go from {old.name} to {state.name}."
                )
            self._state = state
            rebalance_log.info("%s%s -> %s", STATE, old.name, state.name)
            self._changed.notify_all()
            listener = self.listener
            if listener is not None:
                self._guard.tell(f"{old.name} -> {state.name}", lambda: listener(state, old))
            return True

    def wait_ended(self, timeout_s: float | None) -> bool:
        with self._lock:
            return self._changed.wait_for(lambda: self._state in ENDED, timeout_s)


_POLL_S = 0.1


class Pause:
    """Whether an instance is paused (KIP-834), also through rebalances; and which connectors are,
    with the ``parts`` whose tasks do not run: sub-topologies (note 074). Safe from any thread."""

    def __init__(self) -> None:
        self.connectors: frozenset[str] = frozenset()
        self.parts: frozenset[int] = frozenset()
        self._resumed = threading.Event()
        self._resumed.set()
        self.wakes: list[threading.Event] = []
        """Set on `resume` and `pause_connectors`: threads that wait for other events meanwhile."""

    def pause(self) -> None:
        self._resumed.clear()

    def pause_connectors(self, names: frozenset[str], parts: frozenset[int]) -> None:
        """These, in place of earlier ones."""
        self.connectors, self.parts = names, parts
        self._wake_all()

    def resume(self) -> None:
        self._resumed.set()
        self._wake_all()

    def _wake_all(self) -> None:
        for wake in list(self.wakes):
            wake.set()

    @property
    def paused(self) -> bool:
        return not self._resumed.is_set()

    def hold(self, stop: threading.Event) -> bool:
        while self.paused and not stop.is_set():
            self._resumed.wait(_POLL_S)
        return stop.is_set()
