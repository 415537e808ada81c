"""A transactional id: who may write under it, and its open transaction, in both protocols.

With ``transaction.version`` 2 (KIP-890, second part) each end of a transaction raises the
producer's epoch, and partitions and offsets enter a transaction by being written. Before it
(KIP-98) they are announced, and the epoch stays: a late request may meet the next transaction. So
this producer raises its epoch itself after an abort, and after an unanswered request (note 019).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from everflow.errors import EverflowError, RetriableError
from everflow.kafka.broker_link import BrokerLink, CoordinatorKind
from everflow.kafka.errors import UNKNOWN_TOPIC, LinkLostError, RefusedError, classify, passes
from everflow.kafka.writing.record_encoding import Producer
from everflow.kafka.writing.writer_settings import writer_settings
from everflow.records import NO_EPOCH, TopicPartition, by_topic

SECOND_PART = 2
"""``transaction.version`` from which KIP-890's second part holds."""
CONCURRENT = 51
"""The markers of the transaction before are still being written."""
_ANOTHER_COORDINATOR = frozenset({15, 16})
"""It is not available, or it is no coordinator."""
_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.1
_BLOCKED_PAUSE_S = 0.02
"""The markers of the transaction before are mostly written within a few milliseconds."""
_SHORTEST_S = 0.05
"""The shortest time of an answer."""


class OutOfTimeError(Exception):
    """The deadline is over, and the broker's last answer was ``cause``."""

    def __init__(self, cause: RefusedError | LinkLostError) -> None:
        super().__init__(str(cause))
        self.cause = cause


Failure: TypeAlias = RefusedError | LinkLostError | OutOfTimeError
"""Why a request has no good answer."""


def broker_code(failure: Failure) -> int | None:
    cause = failure.cause if isinstance(failure, OutOfTimeError) else failure
    return cause.code if isinstance(cause, RefusedError) else None


class OutcomeUnknownError(Exception):
    """A commit was asked for, and whether it took place only the log knows."""


class GroupMetadata(NamedTuple):
    """A member's identity in its group, in whose name offsets are committed (KIP-447).

    A worker's sink commits for the driver's member (D6). The broker refuses a stale generation, an
    unknown or a wrong static member; it accepts (-1, "") **unfenced**, hence the commit gate.
    """

    generation: int
    group: str
    member_id: str
    instance_id: str | None

    def encode(self) -> bytes:
        return json.dumps(self).encode()

    @staticmethod
    def decode(data: bytes) -> GroupMetadata:
        return GroupMetadata(*json.loads(data))


class Transactions:
    """The transactions of one transactional id, one after the other; without an id, only the
    identity of an idempotent producer. On the loop of ``link``; times are of the monotonic
    clock."""

    def __init__(
        self,
        link: BrokerLink,
        transactional_id: str | None,
        timeout_ms: int,
    ) -> None:
        """``timeout_ms``: after which the broker aborts."""
        self._link = link
        self.id = transactional_id
        self._timeout_ms = timeout_ms
        self.second_part = False
        """Each end raises the epoch (KIP-890)."""
        self.tainted = False
        """A request has no answer: it may be carried out late, in another transaction."""
        self._begun = 0.0
        self._touched = False
        self._added: set[TopicPartition] = set()
        self._committed = False
        self.renewals = 0
        """How often the epoch was asked for anew, as the producer was tainted, since the commit
        before the last one."""
        self.producer = Producer(-1, -1, transactional_id is not None)
        self.blocked_s = 0.0
        """So long the broker was still ending the transaction before, and let nothing enter."""

    @property
    def overdue(self) -> bool:
        """True if the broker has aborted the open transaction by now, for it lasted too long."""
        return (self._link.now() - self._begun) * 1000 >= self._timeout_ms

    async def start(self, deadline: float) -> None:
        """End what another producer left open under the id, and take its place: its epoch is raised
        (it is fenced). Raises RefusedError, LinkLostError, OutOfTimeError."""
        if self.id is not None:
            self.second_part = await self._version(deadline) >= SECOND_PART
        await self._init(deadline, Producer(-1, -1, True))

    async def begin(self, deadline: float) -> None:
        """Open a transaction: only a new epoch, if need be, is asked of the broker. Raises as
        ``start``."""
        if self._committed:
            self._committed, self.renewals = False, 0
        if self.tainted:
            await self._init(deadline, self.producer)
            self.tainted = False
            self.renewals += self.id is not None
        self._begun = self._link.now()
        self._touched = False
        self._added.clear()
        self.blocked_s = 0.0

    def note_blocked(self) -> None:
        """The broker has just refused something as it is still ending the transaction before."""
        self.blocked_s = self._link.now() - self._begun

    async def add(
        self, partitions: Collection[TopicPartition], deadline: float
    ) -> Mapping[TopicPartition, int]:
        """Announce partitions before the first record goes there; the error codes of those that
        were refused for now. With the second part nothing is asked. Raises as ``start``."""
        self._touched = True
        new = sorted(tp for tp in partitions if tp not in self._added)
        if self.id is None or self.second_part or not new:
            return {}
        refused: dict[TopicPartition, int] = {}

        def code(answer: Any) -> int:
            refused.clear()
            for topic in answer.results_by_topic_v3_and_below:
                for one in topic.results_by_partition:
                    if one.partition_error_code:
                        tp = TopicPartition(topic.name, one.partition_index)
                        refused[tp] = one.partition_error_code
            grave = [found for found in refused.values() if found != UNKNOWN_TOPIC]
            return grave[0] if grave else 0

        await self._ask(
            lambda: AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.id,
                v3_and_below_producer_id=self.producer.producer_id,
                v3_and_below_producer_epoch=self.producer.epoch,
                v3_and_below_topics=by_topic(new),
                max_version=3,
            ),
            deadline,
            code,
        )
        # Where one is refused, none is added.
        if not refused:
            self._added.update(new)
        return {tp: refused[tp] for tp in new if refused.get(tp) == UNKNOWN_TOPIC}

    async def send_offsets(
        self, offsets: Iterable[tuple[str, int, int, str]], member: GroupMetadata, deadline: float
    ) -> None:
        """Add (topic, partition, next offset, metadata text) of the member's group. Raises as
        ``start``."""
        assert self.id is not None
        self._touched = True
        if not self.second_part:
            await self._ask(
                lambda: AddOffsetsToTxnRequest(
                    transactional_id=self.id,
                    producer_id=self.producer.producer_id,
                    producer_epoch=self.producer.epoch,
                    group_id=member.group,
                ),
                deadline,
            )
        # NUL: see `GroupChannel.commit`
        rows = {
            TopicPartition(topic, partition): (partition, offset, NO_EPOCH, text + "\0")
            for topic, partition, offset, text in offsets
        }
        await self._ask(
            lambda: TxnOffsetCommitRequest(
                transactional_id=self.id,
                group_id=member.group,
                producer_id=self.producer.producer_id,
                producer_epoch=self.producer.epoch,
                generation_id=member.generation,
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                topics=by_topic(rows, rows.__getitem__),
                min_version=3,
                max_version=5 if self.second_part else 4,
            ),
            deadline,
            lambda answer: max(
                (one.error_code for topic in answer.topics for one in topic.partitions), default=0
            ),
            group=member.group,
        )

    async def end(self, deadline: float, *, committed: bool) -> None:
        """Commit or abort; without a request if nothing entered the transaction.
        OutcomeUnknownError: a commit may have taken place. Else as ``start``: it has not."""
        if self.id is None or not self._touched:
            return
        unanswered: list[LinkLostError] = []
        try:
            answer = await self._ask(
                lambda: EndTxnRequest(
                    transactional_id=self.id,
                    producer_id=self.producer.producer_id,
                    producer_epoch=self.producer.epoch,
                    committed=committed,
                    max_version=5 if self.second_part else 4,
                ),
                deadline,
                unanswered=unanswered,
            )
        except (RefusedError, LinkLostError, OutOfTimeError) as failure:
            if committed and (unanswered or isinstance(failure, OutOfTimeError)):
                raise OutcomeUnknownError(str(failure)) from failure
            raise
        self._touched, self._committed = False, committed
        if self.second_part:
            self._renewed(answer)
            self.tainted = False
        else:
            # After an abort some records may not have arrived: their numbers are missing.
            self.tainted |= not committed

    async def _version(self, deadline: float) -> int:
        pauses = _Pauses(deadline)
        while True:
            try:
                return await self._link.transaction_version()
            except LinkLostError as lost:
                await pauses.take(self._link, lost)

    async def _init(self, deadline: float, known: Producer) -> None:
        answer = await self._ask(
            lambda: InitProducerIdRequest(
                transactional_id=self.id,
                transaction_timeout_ms=self._timeout_ms,
                producer_id=known.producer_id,
                producer_epoch=known.epoch,
                max_version=5,
            ),
            deadline,
        )
        self._renewed(answer)

    def _renewed(self, answer: Any) -> None:
        self.producer = self.producer._replace(
            producer_id=answer.producer_id, epoch=answer.producer_epoch
        )

    async def _ask(
        self,
        request: Callable[[], Any],
        deadline: float,
        code: Callable[[Any], int] = lambda answer: int(answer.error_code),
        *,
        group: str | None = None,
        unanswered: list[LinkLostError] | None = None,
    ) -> Any:
        """The answer without an error, of the coordinator of ``group``, else of the id (without
        one: of any broker), asked for until the deadline while the error is a passing one. Requests
        that were sent and have no answer are added to ``unanswered``."""
        kind: CoordinatorKind = "transaction" if group is None else "group"
        key = self.id if group is None else group
        pauses = _Pauses(deadline)
        while True:
            failure: RefusedError | LinkLostError
            try:
                node = (
                    self._link.any_node()
                    if key is None
                    else await self._link.coordinator(kind, key)
                )
                left_s = max(_SHORTEST_S, deadline - self._link.now())
                answer = await self._link.send(node, request(), left_s)
                refused = code(answer)
                if not refused:
                    return answer
                failure = RefusedError(refused)
            except (LinkLostError, RefusedError) as caught:
                failure = caught
            if isinstance(failure, LinkLostError):
                if failure.sent and unanswered is not None:
                    unanswered.append(failure)
                self.tainted |= failure.sent
            elif failure.code == UNKNOWN_TOPIC or not passes(failure.code):
                raise failure
            if key is not None and (
                isinstance(failure, LinkLostError) or failure.code in _ANOTHER_COORDINATOR
            ):
                self._link.forget_coordinator(kind, key)
            blocked = isinstance(failure, RefusedError) and failure.code == CONCURRENT
            if blocked:
                self.note_blocked()
            await pauses.take(
                self._link, failure, _BLOCKED_PAUSE_S if blocked else _LONGEST_PAUSE_S
            )


class _Pauses:
    """From one attempt to the next, growing, up to a deadline."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._next_s = _FIRST_PAUSE_S

    async def take(
        self,
        link: BrokerLink,
        cause: RefusedError | LinkLostError,
        longest_s: float = _LONGEST_PAUSE_S,
    ) -> None:
        """Raises OutOfTimeError where no time is left."""
        pause_s = min(self._next_s, longest_s)
        if link.now() + pause_s > self._deadline:
            raise OutOfTimeError(cause) from cause
        await link.pause(pause_s)
        self._next_s = min(_LONGEST_PAUSE_S, 2 * self._next_s)


def fence_all(
    config: Mapping[str, Any], transactional_ids: Collection[str], timeout_s: float
) -> None:
    """End whatever still writes under these ids, all at the same time: raise their epochs, abort
    their open transactions.

    Then a zombie's writes and commits are refused, and readers are no longer blocked. Idempotent;
    safe from any thread. RetriableError: no answer within ``timeout_s`` s. FatalError: refused.
    """
    if not transactional_ids:
        return
    deadline = time.monotonic() + timeout_s
    settings = writer_settings(config)
    link = BrokerLink(settings.connection, settings.answer_timeout_ms, timeout_s)
    failures: list[EverflowError] = []

    async def end(transactional_id: str) -> None:
        try:
            transactions = Transactions(link, transactional_id, settings.transaction_timeout_ms)
            await transactions.start(deadline)
        except (RefusedError, LinkLostError, OutOfTimeError) as failure:
            doing, code = f"fencing transactional.id {transactional_id}", broker_code(failure)
            error = RetriableError(f"{doing}: {failure}")
            failures.append(error if code is None else classify(RefusedError(code), doing))

    async def end_all() -> None:
        under_way = [link.started(partial(end, name)) for name in sorted(transactional_ids)]
        for one in under_way:
            await one

    try:
        link.run(end_all)
    finally:
        link.close()
    if failures:
        raise failures[0]
