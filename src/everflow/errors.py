"""One tree of errors, grouped by what the handler does with them (retry, revive a task, stop).

Every error carries a stable ``code`` (``EF-...``) and a message for people: what happened, where,
what to do. docs/guide/errors.md has causes and cures by code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from everflow.user_program import place, user_line

if TYPE_CHECKING:
    from everflow.records import TaskId, TopicPartition


class EverflowError(Exception):
    """Base of everflow's own errors; a wrong argument may also raise a TypeError or ValueError.

    Attributes:
        code: stable identifier, kept over releases; safe to alert on.
        connector: name of the connector (a sink outside Kafka) that raised it, else empty.
    """

    code = "EF-ERROR"
    connector = ""

    def __init_subclass__(cls, *, code: str | None = None) -> None:
        """``code``: the class's own; left out, its base's."""
        super().__init_subclass__()
        if code is not None:
            cls.code = code

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


def without_history(error: EverflowError) -> EverflowError:
    """``error`` without traceback, cause and context, which are for the runtime's log."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


# --- wrong before anything runs: the user mends the program or the set-up -------------------------


class SetupError(EverflowError, code="EF-SETUP"):
    """The machine lacks something (Java, jars, a free port); the message says what to do."""


class ConfigError(EverflowError, code="EF-CONFIG"):
    """A configuration key or value is wrong."""


class StatePointError(ConfigError, code="EF-STATE-POINT"):
    """A store cannot be read at the requested point (a time or offsets): its changelog does not
    have that point, or the text cannot be parsed. The message says what is possible."""


class NoChangelogError(EverflowError, code="EF-NO-CHANGELOG"):
    """The store has no changelog from which its content can be read; the message says why."""


class TopologyError(EverflowError, code="EF-TOPOLOGY"):
    """The program is wrong, or does not fit its topics. Raised while the topology is built, or at
    the start; the message names the line of your code, if one is to blame.

    ``where`` is ``file:line`` of the call in the user's program, or None if unknown.
    """

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.where: str | None = None
        self.called_at(where)

    def called_at(self, where: str | None) -> None:
        if self.where is None and where:
            self.where = where
            self.args = (f"{self.args[0]}\n  at {place(where)}", *self.args[1:])


_Call = TypeVar("_Call", bound=Callable[..., Any])


def naming_the_line(call: _Call) -> _Call:
    """``call``, whose TopologyErrors name the line of the user's that calls it."""

    @functools.wraps(call)
    def named(*args: Any, **keywords: Any) -> Any:
        try:
            return call(*args, **keywords)
        except TopologyError as error:
            error.called_at(user_line())
            raise

    return named  # type: ignore[return-value]


class UnknownNameError(TopologyError, AttributeError, code="EF-UNKNOWN-NAME"):
    """This class or module has no such name; the message gives the name in everflow, or says what
    to do instead.

    An AttributeError too, so that ``hasattr`` and Python's own lookups work.
    """

    def __init__(self, message: str, *, name: str = "", where: str | None = None) -> None:
        super().__init__(message, where=where)
        self.name = name
        self.obj = None  # Python would add a "Did you mean" of its own


class UnknownImportError(TopologyError, ImportError, code="EF-UNKNOWN-NAME"):
    """everflow has no such name to import; the message is as in `UnknownNameError`."""


class UnknownBranchError(TopologyError, KeyError, code="EF-UNKNOWN-NAME"):
    """A split stream has no branch of this name; the message lists its branches."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError shows its repr


# --- fatal for the instance: stop, say why --------------------------------------------------------


class FatalError(EverflowError, code="EF-FATAL"):
    """The instance must stop; retrying would not help or would be unsafe."""


class _DetailedError(FatalError):
    """Its class lists the attributes, with their defaults."""

    def __init__(self, message: str, *, code: str | None = None, **attributes: Any) -> None:
        super().__init__(message, code=code)
        vars(self).update(attributes)


class InternalTopicError(FatalError, code="EF-INTERNAL-TOPIC"):
    """An internal topic is missing or differs from what the topology needs (invariant I10)."""


class OffsetsExpiredError(FatalError, code="EF-OFFSETS-EXPIRED"):
    """There are no committed offsets although internal topics hold records; everflow stops rather
    than count records twice (D5)."""


class BufferFullError(FatalError, code="EF-SUPPRESS-FULL"):
    """The buffer of a ``suppress`` is full, and the program chose ``shut_down_when_full``."""


class StateLockedError(FatalError, code="EF-STATE-LOCKED"):
    """Another instance, usually in another process, has locked the state folder."""


class StateFormatError(FatalError, code="EF-STATE-FORMAT"):
    """The state folder belongs to another application, has a newer format or is damaged; it was not
    changed."""


class StateDiskError(FatalError, code="EF-STATE-DISK"):
    """The disk refused to write state (full, read-only, broken). Committed data is not lost: it is
    in the changelogs."""


class RecordError(FatalError, code="EF-RECORD"):
    """A record cannot be processed: a Python function or serde of the program raised an error (or
    returned a value that does not fit the declared type), or the source's serde cannot decode the
    record's bytes.

    The message names the record (``topic-partition@offset``), the node and the lines of the
    program. Nothing of the record's micro-batch was written: the next start begins with the record.

    Attributes: topic, partition, offset of the record; node that failed.
    """

    def __init__(
        self,
        message: str,
        *,
        topic: str,
        partition: int,
        offset: int,
        node: str | None = None,
        details: tuple[str, ...] = (),
    ) -> None:
        at = f"{topic}-{partition}@{offset}" + (f", node {node}" if node else "")
        super().__init__("\n  ".join([f"{message} (record {at})", *details]))
        self.topic, self.partition, self.offset, self.node = topic, partition, offset, node


class PunctuatorError(_DetailedError, code="EF-USER-FUNCTION"):
    """A call of a processor's method with ``@punctuate`` failed, and the processing exception
    handler does not skip it. The message names method, line, node, task and time; there is no
    record. Nothing of its micro-batch was written.

    Attributes: partitions: the inputs of its task.
    """

    partitions: tuple[TopicPartition, ...] = ()


class RecordTimeError(FatalError, code="EF-RECORD-TIME"):
    """A record's time is negative, and the source's extractor neither replaces it nor skips the
    record; or the time is beyond the year 294247, which Spark cannot store (usually a producer
    wrote micro- or nanoseconds where Kafka expects milliseconds)."""


class RecordTooLargeError(_DetailedError, code="EF-RECORD-TOO-LARGE"):
    """A result or a changelog record is larger than ``producer.message.max.bytes``, or than its
    topic accepts (``max.message.bytes``).

    Attributes: topics: its possible topics; limit: in bytes; place: topic, partition and offset of
    the input record (for a store's entry: of the record that made it so large), and the node; None
    if unknown.
    """

    topics: tuple[str, ...] = ()
    limit: int | None = None
    place: tuple[str, int, int, str] | None = None


class RecordRefusedError(_DetailedError, code="EF-RECORD-REFUSED"):
    """The broker refuses a record: it has no key and the topic has ``cleanup.policy=compact``, or
    its time is further ahead of the broker's clock than the topic's
    ``message.timestamp.after.max.ms`` (by default an hour).

    Attributes: topics; records: key, value and time (ms) of those that were refused; untimely: for
    their times; place: as of `RecordTooLargeError`, of the first; others: the errors of the others.
    """

    topics: tuple[str, ...] = ()
    records: frozenset[tuple[bytes | None, bytes | None, int]] = frozenset()
    untimely: bool = False
    place: tuple[str, int, int, str] | None = None
    others: tuple[RecordRefusedError, ...] = ()

    @property
    def times(self) -> frozenset[int]:
        """Of those that were refused."""
        return frozenset(time for _, _, time in self.records)


class SinkError(FatalError, code="EF-SINK"):
    """A sink does not take what the program gives it: another schema, no such table, no right to
    write, no key. Nothing of the micro-batch was written there. The message names the sink, and
    column and types where they do not fit."""


class DamagedEntryError(_DetailedError, code="EF-DAMAGED-ENTRY"):
    """An entry of a store cannot be decoded, and its changelog, if it has one, has the same bytes:
    the store's serdes did not write them. No record was skipped. The message says what to do. If
    only the disk is damaged, everflow rebuilds the store from its changelog instead.

    Attributes: store, task, key (its bytes; None where it is not known), changelog (the topic; the
    partition is the task's; None: it has none).
    """

    store: str = ""
    task: TaskId | None = None
    key: bytes | None = None
    changelog: str | None = None


class ColumnError(FatalError, code="EF-COLUMN"):
    """A Column cannot be computed for a record (a cast, a division by zero, an overflow: Spark's
    ANSI rules). On an instance the message names the record (of several input topics, one record
    each), and the records before it were processed."""


class WorkerDiedError(FatalError, code="EF-WORKER-DIED"):
    """The Python worker process died repeatedly on the same records, in ever smaller batches: a
    crash in native code, ``os._exit``, or too little memory."""


class BatchTimeoutError(FatalError, code="EF-BATCH-TIMEOUT"):
    """A micro-batch did not end within ``max.poll.interval.ms``, even with one record of each
    input."""


class RepeatedFailureError(FatalError, code="EF-REPEATED-FAILURE"):
    """A micro-batch failed in the same way three times, and the cause is not known to pass."""


class IncompatibleTopologyError(_DetailedError, code="EF-INCOMPATIBLE-TOPOLOGY"):
    """This instance's program does not match the one that the group runs; the other instances
    continue. ``difference``: the differences, as `everflow check` has them."""

    difference: str = ""


class StoreLayoutError(_DetailedError, code="EF-STORE-LAYOUT"):
    """The rows of a store, or records that wait in a repartition topic, were written by a program
    with other types (of fields, aggregates, keys or windows); this program would read wrong values
    from them. Nothing was read or changed. ``difference``: store or topic, line, and the stored and
    the declared types, as `everflow check` has them."""

    difference: str = ""


class ProcessIdClashError(FatalError, code="EF-PROCESS-ID-CLASH"):
    """Another member of the group has the same process id: usually the state folder was copied."""


class MissingSourceTopicError(FatalError, code="EF-MISSING-SOURCE-TOPIC"):
    """A topic that the program reads was deleted while the instance ran."""


class AssignmentFailedError(FatalError, code="EF-ASSIGNMENT-FAILED"):
    """The leader could not assign the tasks, or could not read this member's user data."""


class ShutdownRequestedError(FatalError, code="EF-SHUTDOWN-REQUESTED"):
    """An instance asked the whole application to shut down (KIP-671)."""


class ApplicationMigratedError(_DetailedError, code="EF-MIGRATED"):
    """The application's state and offsets were carried into another application by `everflow
    migrate`, which goes on in its place. Nothing was read or changed.

    Attributes: to: the application.id of that one.
    """

    to: str = ""


class MigrationError(_DetailedError, code="EF-MIGRATION"):
    """`everflow migrate` cannot carry the application over, or gave up before the switch: the old
    version goes on. The message says why, and what to do.

    Attributes: store: whose entry could not be converted; place: topic, partition and offset of its
    record; key: its bytes.
    """

    store: str = ""
    place: tuple[str, int, int] | None = None
    key: bytes | None = None


class TaskTimeoutError(FatalError, code="EF-TASK-TIMEOUT"):
    """An operation did not succeed in its time, usually ``task.timeout.ms`` (KIP-572): a task made
    no progress, or an instance could not start. The message contains the last failure.

    ``task``: the task that made no progress; None if the operation belongs to no task.
    """

    def __init__(self, message: str, task: TaskId | None = None) -> None:
        super().__init__(message)
        self.task = task


class SchemaError(FatalError, code="EF-SCHEMA"):
    """A schema registry does not have the schema that is to be written, or refuses it."""


class TableLoadError(FatalError, code="EF-TABLE-LOAD"):
    """The rows of a `StreamsBuilder.global_table_from` could not be loaded when the instance
    started; the cause is the error's ``__cause__``."""


class IllegalTransitionError(EverflowError, code="EF-ILLEGAL-TRANSITION"):
    """A task or the instance was to change to a state that cannot follow: a bug in everflow."""


# --- recoverable: the runtime reacts, the user sees a log line ------------------------------------


class RetriableError(EverflowError, code="EF-RETRIABLE"):
    """A temporary failure (broker away, time-out). A running instance retries the operation until
    ``task.timeout.ms`` is over; repeat your own call.

    ``partitions``: partitions for which no broker answered; empty if unknown.
    """

    def __init__(
        self,
        message: str,
        partitions: Iterable[TopicPartition] = (),
        *,
        code: str | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.partitions = frozenset(partitions)


class GenerationChanged(RetriableError, code="EF-GENERATION-CHANGED"):
    """The group's generation changed during a commit, while the tasks may still belong to this
    instance: everflow aborts the transaction and runs the same batch again at once (D6,
    KIP-447)."""


class LogStartMovedError(RetriableError, code="EF-LOG-START-MOVED"):
    """The requested offset is no longer in the log (D5). If the log is a changelog, everflow
    rebuilds the store; if it is an input, ``auto.offset.reset`` applies.

    ``partition``: the log, where a reader raises it.
    """

    def __init__(self, message: str, partition: TopicPartition | None = None) -> None:
        super().__init__(message, () if partition is None else (partition,))
        self.partition = partition


class OtherTopicError(RetriableError, code="EF-OTHER-TOPIC"):
    """A partition's leader reports that the topic was deleted, and perhaps created again. Nothing
    of that partition is committed any more; the instance stops once the brokers confirm it.

    ``partitions``: those of the deleted topic.
    """


class OffsetsWentBackError(RetriableError, code="EF-OFFSETS-WENT-BACK"):
    """The group coordinator returns lower offsets than were committed; starting there would process
    records twice. Tasks wait for the higher ones until ``task.timeout.ms`` is over (note 064)."""


class LogTruncatedError(LogStartMovedError):
    """The log no longer has records that were read before, because of an unclean leader election
    (KIP-320). everflow acts as on the base class, LogStartMovedError."""


class TaskMigratedError(EverflowError, code="EF-TASK-MIGRATED"):
    """This instance lost tasks (fenced, or removed from the group): everflow closes them without a
    commit and joins the group again."""


class UnknownOutcomeError(EverflowError, code="EF-UNKNOWN-OUTCOME"):
    """A commit was sent but its response was lost: whether it succeeded is unknown until everflow
    has read the committed offsets (D6)."""


class StoreMismatchError(EverflowError, code="EF-STORE-MISMATCH"):
    """A store update expected another owner or another last batch of the store; nothing was
    written (D5)."""


# --- what a user can do when offsets and topics no longer belong together -------------------------


def start_over(application_id: str) -> str:
    """The steps. What they delete cannot be brought back: say the likely cause first."""
    return (
        f"To start {application_id} over from its input: stop all its instances, then `everflow "
        f"reset MODULE:NAME --application-id {application_id} --bootstrap-servers ...` (it shows "
        f"what it deletes, and asks; it is also what ends a reset that was cut off); delete, on "
        f"every other machine, the folder {application_id} in state.dir; then start the instances "
        f"again."
    )


def read_again(application_id: str, topic: str) -> str:
    """How to go on, state kept, with an input topic that has lost what was read of it."""
    return (
        f"To keep the state and read {topic} as it is now from its beginning: stop all instances, "
        "then kafka-consumer-groups --reset-offsets --to-earliest --execute --group "
        f"{application_id} --topic {topic}; delete, on every machine, the folder {application_id} "
        "in state.dir, which knows how far the offsets had come (its stores are restored from "
        "their changelogs), and start them again."
    )
