"""A simulated log: inputs, changelogs, transactions with time-outs, offsets fenced by generation.

Records are not kept one by one. An input is a number of records; a changelog is a list of writes,
each carrying what the store's content is after it (`Fold`); a record's value follows from its
offset, so a fold over any range is known in closed form.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from everflow.errors import EverflowError, GenerationChanged, RetriableError, TaskMigratedError
from everflow.records import CommittedOffset, TopicPartition
from everflow_simulation.group_coordinator import Code, GroupCoordinator
from everflow_simulation.history import History
from everflow_simulation.scheduler import Scheduler, Timer


@dataclass(frozen=True)
class Fold:
    """What a store holds: number, sum and sum of squares of the input offsets counted in. A record
    lost or counted twice shows."""

    count: int = 0
    total: int = 0
    squares: int = 0

    def plus(self, start: int, end: int) -> Fold:
        """With the offsets ``[start, end)`` counted in."""
        return Fold(
            self.count + end - start,
            self.total + _sum(end) - _sum(start),
            self.squares + _sum_of_squares(end) - _sum_of_squares(start),
        )


def fold_of(start: int, end: int) -> Fold:
    """The fold of ``[start, end)``."""
    return Fold().plus(start, end)


def _sum(n: int) -> int:
    return n * (n - 1) // 2


def _sum_of_squares(n: int) -> int:
    return n * (n - 1) * (2 * n - 1) // 6


@dataclass(frozen=True)
class Write:
    """Some records of one batch in a changelog, ``[start, end)``; the content after them, and where
    the input stood."""

    start: int
    end: int
    content: Mapping[TopicPartition, Fold]
    batch: str


@dataclass
class Partition:
    """One partition. ``stable`` runs from its open transactions."""

    end: int = 0
    writes: list[Write] = field(default_factory=list)
    """Committed writes, by offset (changelogs only)."""
    open: dict[str, int] = field(default_factory=dict)
    """Transaction -> first offset, while its marker has not landed here."""

    @property
    def stable(self) -> int:
        """The last stable offset."""
        return min(self.open.values(), default=self.end)


@dataclass(kw_only=True)
class Transaction:
    """One open transaction; its ``name`` is unique."""

    name: str
    changes: dict[TopicPartition, Write] = field(default_factory=dict)
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    ranges: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """What was read of each input: ``[start, end)``."""
    sent: dict[TopicPartition, int] = field(default_factory=dict)
    """The order in which offsets were sent."""
    who: str = ""
    timeout: Timer | None = None
    markers: int = 0
    """Still to land."""


class FencedError(TaskMigratedError):
    """ProducerFenced: another producer has taken the transactional id."""


def refusal(code: Code) -> EverflowError:
    """What a client makes of the group's refusal of offsets in a transaction
    (`kafka.errors.classify`)."""
    kinds = {Code.NOT_COORDINATOR: RetriableError, Code.ILLEGAL_GENERATION: GenerationChanged}
    return kinds.get(code, TaskMigratedError)(code.value)


CommitListener = Callable[
    [
        Mapping[TopicPartition, CommittedOffset],
        Mapping[TopicPartition, CommittedOffset],
        Transaction,
    ],
    None,
]


@dataclass(kw_only=True)
class SimulatedLog:
    """Topics, transaction coordinator and the group's offsets. Marker delays in ms, per partition:
    they land independently (KAFKA-10167). ``on_commit(offsets before, offsets after, transaction)``
    is called at each decision to commit."""

    scheduler: Scheduler
    history: History
    group: GroupCoordinator
    random: Random
    marker_delay_ms: tuple[float, float] = (0.5, 8.0)
    on_commit: CommitListener = lambda before, after, transaction: None
    partitions: dict[TopicPartition, Partition] = field(default_factory=dict)
    committed: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    first: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    """What was committed first of each partition."""
    pending: dict[TopicPartition, list[str]] = field(default_factory=dict)
    """Partition -> transactions whose offsets wait for their markers."""
    decided: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    """Offsets as decided by commits, landed or not: what ``committed`` becomes."""
    available: bool = True
    forgotten: dict[TopicPartition, CommittedOffset] | None = None
    """What the group's coordinator tells instead of ``committed`` while it has forgotten some."""
    _epochs: dict[str, int] = field(default_factory=dict)
    _open: dict[str, Transaction] = field(default_factory=dict)
    _ending: dict[str, Transaction] = field(default_factory=dict)
    _names: int = 0
    _sent: int = 0
    _landed: dict[TopicPartition, int] = field(default_factory=dict)
    """Partition -> which sending of offsets is the committed one."""

    def partition(self, tp: TopicPartition) -> Partition:
        """The partition, made on first use."""
        return self.partitions.setdefault(tp, Partition())

    def grow(self, tp: TopicPartition, records: int) -> None:
        """Some other application writes records, committed at once."""
        self.partition(tp).end += records

    # --- what readers ask -------------------------------------------------------------------------

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Log ends, read_uncommitted."""
        self._require_available()
        return {tp: self.partition(tp).end for tp in partitions}

    def stable_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Last stable offsets."""
        self._require_available()
        return {tp: self.partition(tp).stable for tp in partitions}

    def stable_committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        """Committed offsets with ``require_stable``; RetriableError while one of them is
        pending."""
        self._require_available()
        unstable = [tp for tp in partitions if self.pending.get(tp)]
        if unstable:
            raise RetriableError(
                f"offsets of {', '.join(map(str, unstable[:3]))} are pending in "
                f"{self.pending[unstable[0]][0]}"
            )
        return self.committed_last(partitions)

    def committed_last(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        """Committed offsets, whatever is pending."""
        self._require_available()
        known = self.committed if self.forgotten is None else self.forgotten
        return {tp: known[tp] for tp in partitions if tp in known}

    def read(
        self, tp: TopicPartition, position: int, end: int
    ) -> tuple[Mapping[TopicPartition, Fold] | None, str]:
        """The content and batch that the last committed write ending in ``(position, end]`` left
        behind, (None, "") without one; a write that is only read in part is not there yet."""
        writes = self.partition(tp).writes
        last = bisect_right(writes, end, key=lambda write: write.end) - 1
        if last < 0 or writes[last].end <= position:
            return None, ""
        return writes[last].content, writes[last].batch

    # --- transactions -----------------------------------------------------------------------------

    def init_transactions(self, transactional_id: str) -> int:
        """A new epoch; what an earlier producer of this id has open is aborted (that is what fences
        it)."""
        self._require_available()
        self._require_ended(transactional_id)
        self._epochs[transactional_id] = self._epochs.get(transactional_id, -1) + 1
        if transactional_id in self._open:
            self._end(transactional_id, commit=False, why="fenced")
        return self._epochs[transactional_id]

    def _require_ended(self, transactional_id: str) -> None:
        last = self._ending.get(transactional_id)
        if last is not None and last.markers > 0:
            raise RetriableError(
                f"{transactional_id}: CONCURRENT_TRANSACTIONS, {last.name} is still being ended"
            )

    def open_ids(self) -> list[str]:
        """Transactional ids with an open transaction."""
        self._require_available()
        return sorted(self._open)

    def begin(self, transactional_id: str, epoch: int, who: str, timeout_ms: float) -> Transaction:
        """Open a transaction. FencedError for an older epoch; RetriableError until the last one's
        markers have landed."""
        self._check_epoch(transactional_id, epoch)
        self._require_ended(transactional_id)
        if transactional_id in self._open:
            raise FencedError(f"{transactional_id}: a transaction is open already")
        self._names += 1
        transaction = Transaction(name=f"tx{self._names}", who=who)
        transaction.timeout = self.scheduler.after(
            timeout_ms, lambda: self._time_out(transactional_id, transaction)
        )
        self._open[transactional_id] = transaction
        return transaction

    def write(
        self,
        transactional_id: str,
        epoch: int,
        tp: TopicPartition,
        records: int,
        content: Mapping[TopicPartition, Fold],
        batch: str,
    ) -> Write:
        """Append records to a changelog inside the open transaction. FencedError for an older
        epoch."""
        transaction = self._transaction(transactional_id, epoch)
        partition = self.partition(tp)
        before = transaction.changes.get(tp)
        start = partition.end if before is None else before.start
        written = Write(start, partition.end + records, dict(content), batch)
        partition.open.setdefault(transaction.name, partition.end)
        partition.end = written.end
        transaction.changes[tp] = written
        return written

    def send_offsets(
        self,
        transactional_id: str,
        epoch: int,
        offsets: Mapping[TopicPartition, CommittedOffset],
        ranges: Mapping[TopicPartition, tuple[int, int]],
        member: tuple[int, str, str | None],
    ) -> None:
        """TxnOffsetCommit with the group's metadata (KIP-447). Raises `refusal` where the group
        says no."""
        transaction = self._transaction(transactional_id, epoch)
        generation, member_id, instance_id = member
        code = self.group.offset_commit(member_id, instance_id, generation, transactional=True)
        if code is not Code.NONE:
            raise refusal(code)
        transaction.offsets.update(offsets)
        transaction.ranges.update(ranges)
        for tp in offsets:
            self._sent += 1
            transaction.sent[tp] = self._sent
            self.pending.setdefault(tp, []).append(transaction.name)

    def commit(self, transactional_id: str, epoch: int) -> None:
        """EndTxn(commit): the decision. Markers land afterwards."""
        self._transaction(transactional_id, epoch)
        self._end(transactional_id, commit=True)

    def abort(self, transactional_id: str, epoch: int) -> None:
        """EndTxn(abort)."""
        self._transaction(transactional_id, epoch)
        self._end(transactional_id, commit=False)

    def commit_offsets(
        self, offsets: Mapping[TopicPartition, CommittedOffset], member: tuple[int, str, str | None]
    ) -> Code:
        """Plain OffsetCommit, outside of transactions."""
        generation, member_id, instance_id = member
        code = self.group.offset_commit(member_id, instance_id, generation, transactional=False)
        if code is Code.NONE:
            self.decided.update(offsets)
            for tp, offset in offsets.items():
                self._keep(tp, offset)
        return code

    # --- inside -----------------------------------------------------------------------------------

    def _require_available(self) -> None:
        if not self.available:
            raise RetriableError("no broker answers")

    def _check_epoch(self, transactional_id: str, epoch: int) -> None:
        if self._epochs.get(transactional_id, -1) != epoch:
            raise FencedError(
                f"{transactional_id}: epoch {epoch} is over, now "
                f"{self._epochs.get(transactional_id)}"
            )

    def _transaction(self, transactional_id: str, epoch: int) -> Transaction:
        self._check_epoch(transactional_id, epoch)
        if transactional_id not in self._open:
            raise FencedError(f"{transactional_id}: no open transaction")
        return self._open[transactional_id]

    def _time_out(self, transactional_id: str, transaction: Transaction) -> None:
        if self._open.get(transactional_id) is transaction:
            self._epochs[transactional_id] += 1
            self._end(transactional_id, commit=False, why="timed out")

    def _end(self, transactional_id: str, commit: bool, why: str = "") -> None:
        transaction = self._open.pop(transactional_id)
        if transaction.timeout is not None:
            transaction.timeout.cancel()
        self._ending[transactional_id] = transaction
        transaction.markers = len(transaction.changes) + bool(transaction.offsets)
        if why:
            self.history.add("log", f"{transaction.name} of {transaction.who} aborted: {why}")
        if commit:
            before = {tp: self.decided[tp] for tp in transaction.offsets if tp in self.decided}
            self.on_commit(before, transaction.offsets, transaction)
            self.decided.update(transaction.offsets)
        for tp in sorted(transaction.changes):
            self.scheduler.after(
                self.random.uniform(*self.marker_delay_ms),
                lambda tp=tp: self._mark(transaction, tp, commit),  # type: ignore[misc]
            )
        if transaction.offsets:
            self.scheduler.after(
                self.random.uniform(*self.marker_delay_ms),
                lambda: self._mark_offsets(transaction, commit),
            )

    def _keep(self, tp: TopicPartition, offset: CommittedOffset) -> None:
        self.committed[tp] = offset
        self.first.setdefault(tp, offset)
        if self.forgotten is not None:
            self.forgotten[tp] = offset

    def _mark(self, transaction: Transaction, tp: TopicPartition, commit: bool) -> None:
        partition = self.partition(tp)
        transaction.markers -= 1
        del partition.open[transaction.name]
        partition.end += 1  # the marker
        if commit:
            partition.writes.append(transaction.changes[tp])
            partition.writes.sort(key=lambda write: write.start)
            del partition.writes[:-64]

    def _mark_offsets(self, transaction: Transaction, commit: bool) -> None:
        transaction.markers -= 1
        for tp, offset in transaction.offsets.items():
            self.pending[tp].remove(transaction.name)
            # As the broker does: a marker that lands late does not bring back an offset that was
            # sent before another's.
            if commit and transaction.sent[tp] > self._landed.get(tp, 0):
                self._landed[tp] = transaction.sent[tp]
                self._keep(tp, offset)
