"""The commit gate (D6): no offsets are sent before the driver says yes, at that moment. Metadata of
a job's start dies with every rebalance, and after an eviction goes unfenced (scenarios 6-8)."""

from __future__ import annotations

import base64
import json
import logging
import os
import socketserver
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from everflow.clock import on_thread
from everflow.config import EXACTLY_ONCE_V2
from everflow.errors import FatalError, SetupError
from everflow.protocol.messages import BatchId, WorkerClients
from everflow.records import MemberMetadata, Offsets, TaskId, TopicPartition
from everflow.sockets import (
    TooLargeError,
    read_line,
    remove_abandoned,
    remove_socket_folder,
    socket_folder,
)

log = logging.getLogger("everflow")

_SOCKET = "gate.sock"


class Offset(NamedTuple):
    topic: str
    partition: int
    offset: int
    metadata: str


@dataclass(frozen=True)
class OpenBatch:
    """A batch in flight. ``epochs``: ownership epoch of each of its tasks when the batch began."""

    batch_id: str
    thread: int
    guarantee: str
    epochs: Mapping[TaskId, int]


class Decision(NamedTuple):
    """``reason`` says why not, for the log: a word for the kind, a colon, the rest."""

    ok: bool
    reason: str = ""


def decide(
    batch_id: str,
    batch: OpenBatch | None,
    answered: bool,
    member: MemberMetadata,
    epochs_now: Mapping[TaskId, int],
    revoked_in: Mapping[TaskId, tuple[int, str]] | None = None,
) -> Decision:
    """May the batch commit? Yes only if it is the open one (its id carries the attempt), was not
    answered before, the member stands in a generation, and every task has been owned without a
    break since the batch began. A revoked task may commit only in the generation of its revocation
    (``revoked_in``): in any other it can be another member's."""
    if batch is None:
        return Decision(False, f"unknown-batch: {batch_id} is not in flight (an older attempt?)")
    if answered:
        return Decision(False, f"already-answered: {batch_id} has asked before")
    if member.generation < 0 or not member.member_id:
        return Decision(
            False, f"not-a-member: generation {member.generation}, member id {member.member_id!r}"
        )
    present = (member.generation, member.member_id)
    gone = {task for task, epoch in batch.epochs.items() if epochs_now.get(task) != epoch}
    revoked_earlier = {task for task, at in (revoked_in or {}).items() if at != present}
    if not (against := gone | (revoked_earlier & batch.epochs.keys())):
        return Decision(True)
    task = min(against)
    began = f"task {task} is not owned as when the batch began"
    earlier = f"task {task} was revoked in an earlier generation"
    return Decision(False, f"ownership-changed: {began if task in gone else earlier}")


_served_last: dict[int, object] = {}
"""Worker process -> the book that it served last: one that serves another is not ours to kill."""


class GateBook:
    """Ownership of tasks, and the batches in flight. Safe from any thread; returns at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._identity = object()
        self._epoch = 0
        self._epochs: dict[TaskId, int] = {}
        self._revoked_in: dict[TaskId, tuple[int, str]] = {}
        self._owned_again: set[TaskId] = set()
        self._open: dict[str, OpenBatch] = {}
        self._answered: set[str] = set()
        self._abandoned: set[int] = set()
        self._hurried: set[int] = set()
        self._pids: dict[int, int] = {}

    def own(self, tasks: Iterable[TaskId]) -> None:
        """These tasks became ours; owned ones keep their epoch unless they were revoked."""
        with self._lock:
            self._epoch += 1
            for task in tasks:
                if self._revoked_in.pop(task, None) is not None:
                    del self._epochs[task]
                    self._owned_again.add(task)
                self._epochs.setdefault(task, self._epoch)

    def revoke(self, tasks: Iterable[TaskId], member: MemberMetadata) -> None:
        """These tasks have to be released. Their batches may still commit, but only while
        ``member`` stays in its generation: it may get no notice of an eviction before `release`."""
        with self._lock:
            for task in tasks:
                self._owned_again.discard(task)
                if task in self._epochs:
                    self._revoked_in[task] = (member.generation, member.member_id)

    def release(self, tasks: Iterable[TaskId]) -> None:
        """Revoked tasks were released. One that became ours again (after an eviction) stays."""
        with self._lock:
            for task in tasks:
                if task not in self._owned_again:
                    self._epochs.pop(task, None)
                    self._revoked_in.pop(task, None)

    def disown_all(self) -> None:
        """The member was lost. Called before a new generation can be seen."""
        with self._lock:
            self._epochs.clear()
            self._revoked_in.clear()

    def owned(self) -> frozenset[TaskId]:
        with self._lock:
            return frozenset(self._epochs)

    def epoch(self, task: TaskId) -> int:
        """Number of the present ownership of ``task``; -1 when it is not owned."""
        with self._lock:
            return self._epochs.get(task, -1)

    def broken(self, task: TaskId, epoch: int) -> bool:
        with self._lock:
            return self._epochs.get(task) != epoch

    def begin(
        self, batch_id: str, thread: int, guarantee: str, epochs: Mapping[TaskId, int]
    ) -> bool:
        """Open a batch in these ownerships. False: one is over, or `abandon` was called."""
        with self._lock:
            if thread in self._abandoned or not epochs.items() <= self._epochs.items():
                return False
            self._open[batch_id] = OpenBatch(batch_id, thread, guarantee, dict(epochs))
            self._pids.pop(thread, None)  # it may be another process's by now
            return True

    def end(self, batch_id: str) -> None:
        """Close a batch, whatever became of it; a late question about it is refused."""
        with self._lock:
            self._open.pop(batch_id, None)
            self._answered.discard(batch_id)

    def abandon(self, thread: int) -> None:
        """This stream thread is left behind: it begins no batch, and its workers are refused."""
        with self._lock:
            self._abandoned.add(thread)
            for batch in [one for one in self._open.values() if one.thread == thread]:
                del self._open[batch.batch_id]
                self._answered.discard(batch.batch_id)

    def hurry(self, thread: int) -> None:
        """The batches of this stream thread are to end early, until `at_leisure`: those that wait
        for calls to the outside (note 070)."""
        with self._lock:
            self._hurried.add(thread)

    def at_leisure(self, thread: int) -> None:
        """Nobody waits for this stream thread any more."""
        with self._lock:
            self._hurried.discard(thread)

    def wanted(self, batch_id: str) -> bool:
        """Whether a batch is in flight and may take its time."""
        with self._lock:
            batch = self._open.get(batch_id)
            return batch is not None and batch.thread not in self._hurried

    def serves(self, batch_id: str, pid: int) -> bool:
        """Record the worker process of a batch; False if it is not in flight: it must not run."""
        with self._lock:
            batch = self._open.get(batch_id)
            if batch is None:
                return False
            self._pids[batch.thread] = pid
            _served_last[pid] = self._identity
            return True

    def take_pids(self, thread: int) -> tuple[int, ...]:
        """The worker process of a stream thread's batch, if there is one and it has served nobody
        else since; forgets it."""
        with self._lock:
            pid = self._pids.pop(thread, None)
            return () if pid is None or _served_last.get(pid) is not self._identity else (pid,)

    @property
    def finishing(self) -> bool:
        """True while a batch is run again: no generation that could refuse it is joined then."""
        with self._lock:
            return any(BatchId.parse(batch_id).attempt > 0 for batch_id in self._open)

    def ask(
        self,
        batch_id: str,
        member: MemberMetadata,
    ) -> tuple[Decision, OpenBatch | None]:
        """`decide` on the present facts, and note that the batch was answered. ``member`` must have
        been read *before* this call: an eviction between the two shows as a change of ownership."""
        with self._lock:
            batch = self._open.get(batch_id)
            decision = decide(
                batch_id, batch, batch_id in self._answered, member, self._epochs, self._revoked_in
            )
            if batch is not None:
                self._answered.add(batch_id)
            return decision, batch


@dataclass(frozen=True)
class GateBackend:
    """The group member, and the ``clients`` settings of workers. ``commit``: at least once, through
    the member; False: the offsets are deferred to the next batch. An error is a no."""

    member: Callable[[], MemberMetadata]
    encode: Callable[[MemberMetadata], bytes]
    commit: Callable[[Sequence[Offset]], bool]
    clients: WorkerClients = field(default_factory=WorkerClients)


def answer(
    book: GateBook,
    backend: GateBackend,
    question: Mapping[str, Any],
) -> dict[str, Any]:
    op, batch_id = question.get("op"), str(question.get("batch"))
    if op == "wanted":
        return {"ok": book.wanted(batch_id)}
    if op == "clients":
        clients = backend.clients
        return {"ok": True, "reader": dict(clients.reader), "producer": dict(clients.producer)}
    if op != "commit":
        return {"ok": False, "reason": f"unknown question {op!r}"}
    member = backend.member()
    decision, batch = book.ask(batch_id, member)
    if not decision.ok or batch is None:
        return {"ok": False, "reason": decision.reason}
    if batch.guarantee == EXACTLY_ONCE_V2:
        return {"ok": True, "group_metadata": base64.b64encode(backend.encode(member)).decode()}
    offsets = [Offset(str(t), int(p), int(o), str(m)) for t, p, o, m in question["offsets"]]
    try:
        return {"ok": True, "deferred": not backend.commit(offsets)}
    except Exception as error:  # whatever the client raised: the worker gets a no with the text
        return {"ok": False, "reason": f"offset commit failed: {error}"}


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, path: str, book: GateBook, backend: GateBackend) -> None:
        self.book, self.backend = book, backend
        super().__init__(path, _Handler)


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        while line := self._question():
            try:
                reply = answer(self.server.book, self.server.backend, json.loads(line))
            except Exception as error:  # one bad question must not take the gate down
                log.exception("The commit gate could not answer a worker")
                reply = {"ok": False, "reason": f"gate error: {error}"}
            try:
                self.wfile.write(json.dumps(reply, separators=(",", ":")).encode() + b"\n")
            except OSError:
                return  # the worker died while it waited

    def _question(self) -> bytes:
        """The next one; empty where the worker has hung up, or sends what is no question."""
        try:
            return read_line(self.rfile, "a worker's question to the commit gate")
        except TooLargeError as error:
            log.error("%s: its connection is closed, and it must not commit", error)
            return b""
        except OSError:
            return b""


@dataclass(kw_only=True)
class CommitGate:
    """The server: one per instance, on a Unix socket in a folder that only this user may enter."""

    book: GateBook
    backend: GateBackend
    _server: _Server | None = field(default=None, init=False)
    _opened: ExitStack = field(default_factory=ExitStack, init=False)

    def start(self) -> str:
        """Listen; returns the socket's path. SetupError if no folder for it can be made."""
        remove_abandoned()
        try:
            folder = socket_folder()
            self._opened.callback(remove_socket_folder, folder)
            path = folder / _SOCKET
            server = self._server = _Server(str(path), self.book, self.backend)
            self._opened.callback(server.server_close)
            os.chmod(path, 0o600)
        except OSError as error:
            self.close()
            raise SetupError(
                f"No place for the commit gate's socket: {error}. Set TMPDIR to a folder with a "
                f"short path that this user may write to."
            ) from error
        on_thread("everflow-gate", server.serve_forever)
        self._opened.callback(server.shutdown)
        return str(path)

    def require_reachable(self) -> None:
        """FatalError if the socket was deleted: no batch could commit any more. Quick; often."""
        server = self._server
        if server is not None and not os.path.lexists(str(server.server_address)):
            raise FatalError(
                f"The commit gate's socket {server.server_address} was deleted under the running "
                f"instance: no worker can ask whether it may commit. Nothing is lost; start the "
                f"instance again, and keep what tidies temporary folders away from it, or set "
                f"TMPDIR to another folder with a short path."
            )

    def close(self) -> None:
        self._server = None
        self._opened.close()


# --- deferred offsets (scenario 26) ---------------------------------------------------------------


CommitOffsets = Callable[[Mapping[TopicPartition, tuple[int, str]]], bool]


class DeferredOffsets:
    """Commits offsets through the member and defers those that it would not take. Any thread."""

    def __init__(self, commit: CommitOffsets, committed: Callable[[Offsets], None]) -> None:
        self._commit, self._committed = commit, committed
        self._committing = threading.Lock()
        # Not held over a commit, which needs the group client's thread: that calls `forget`.
        self._lock = threading.Lock()
        self._forgotten: set[TopicPartition] = set()
        self._deferred: dict[TopicPartition, tuple[int, str]] = {}

    def commit(self, offsets: Sequence[Offset]) -> bool:
        """Commit these and all deferred ones; False = the group rebalances, they are deferred now.
        Raises what the member raises; then nothing is deferred that was not before."""
        with self._committing:
            with self._lock:
                self._forgotten.clear()
                merged = dict(self._deferred)
            for topic, partition, offset, metadata in offsets:
                merged[TopicPartition(topic, partition)] = (offset, metadata)
            if not merged:
                return True
            taken = self._commit(merged)
            if taken:
                self._committed({tp: offset for tp, (offset, _) in merged.items()})
            else:
                text = "The group rebalances: the offsets of %d partitions go with the next commit"
                log.info(text, len(merged))
            with self._lock:
                refused = () if taken else merged.items()
                self._deferred = {tp: at for tp, at in refused if tp not in self._forgotten}
            return taken

    def partitions(self) -> frozenset[TopicPartition]:
        with self._lock:
            return frozenset(self._deferred)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """These are others' now: they must not be committed over theirs. Returns at once."""
        with self._lock:
            self._forgotten.update(partitions)
            for tp in partitions:
                self._deferred.pop(tp, None)
