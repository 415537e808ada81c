"""What a client says of its connections while no broker answers, and when that does not pass."""

from __future__ import annotations

import re
from collections import Counter, deque

from confluent_kafka import KafkaError

from everflow.errors import FatalError

_KEPT = 20
_NO_TOKEN = "Failed to acquire"
"""In what librdkafka says of a token endpoint that does not answer: an outage."""
_CURES = {
    KafkaError._AUTHENTICATION: "Check sasl.mechanism, the user's name and password (or token).",
    KafkaError._SSL: "Check that ssl.ca.location holds the authority of the brokers' certificates.",
}
_UNREACHED = (KafkaError._RESOLVE, KafkaError._TRANSPORT)
_NUMBERED = re.compile(r"(\S+:\d+)/\d+: (?:Connect|Failed to resolve|Connection setup)")
"""How librdkafka calls a broker that it cannot connect to: host, port, number."""
_PASSES = 1
"""So often a refusal may be chance: a broker that starts."""


class ConnectionTrouble:
    """``heard`` is a client's ``error_cb``, called on the thread that polls it; `sentence` is for
    that thread, too."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._told: deque[KafkaError] = deque(maxlen=_KEPT)
        self._last = ""
        self._refusals: Counter[int] = Counter()
        self.advertised: set[str] = set()
        """Where a broker that answered says that brokers are, and where none was reached."""

    def heard(self, error: KafkaError) -> None:
        """Keep it until the next `sentence`."""
        self._told.append(error)
        # Brokers have a number only in what another one has said of them.
        if error.code() in _UNREACHED and (named := _NUMBERED.match(error.str())):
            self.advertised |= {named[1]} - set(self._servers.split(","))

    def expect(self) -> None:
        """Somebody waits for a broker from now on: refusals of before do not count."""
        self._refusals.clear()
        self.advertised.clear()

    def sentence(self) -> str:
        """What was heard last, or before as clients do not repeat themselves; "" for nothing.
        FatalError where a broker refused this client, or it the broker's certificate, more than
        once."""
        said = [error for error in self._told if error.code() != KafkaError._ALL_BROKERS_DOWN]
        self._told.clear()
        if not said:
            return self._last
        code, text = said[-1].code(), said[-1].str()
        self._refusals[code] += 1
        if code in _CURES and _NO_TOKEN not in text and self._refusals[code] > _PASSES:
            raise FatalError(
                f"the brokers at {self._servers} and this client do not come together: {text}. "
                f"{_CURES[code]}"
            )
        self._last = f" The client says: {text}"
        return self._last
