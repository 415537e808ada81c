"""The Spark job of a stream thread: prepared per assignment, run per micro-batch (D1, D2)."""

from __future__ import annotations

import logging
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from everflow.errors import EverflowError, SetupError
from everflow.spark.foreign import mark_as_ours
from everflow.spark.later import running_context
from everflow.spark.launch import daemon_ahead
from everflow.spark.segments import hop_out_of_step, segment, spark_schema
from everflow.spark.session import prepare_environment
from everflow.topology.physical_plan import PhysicalPlan
from everflow.travel.own_code import program_folders

_environment_lock = threading.Lock()
"""While an application's one environment is replaced by one per thread (`_Environment`)."""


class _FailuresToldByUs(logging.Filter):
    """PySpark logs a Column's failure with its JVM stack on standard error, at every attempt."""

    def filter(self, record: logging.LogRecord) -> bool:
        """False for what a stream thread's job met: the thread tells it."""
        return not (record.threadName or "").startswith("everflow-")


_told_by_us = _FailuresToldByUs()
SERVING_SLOT = "serving"
_AHEAD_S = 20.0
_ahead: dict[str, ServingJob] = {}
"""The job that starts a slot's worker ahead; the first one that needs the worker takes it out."""
StepFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class SparkJobError(EverflowError):
    """A job failed; the text is the JVM's, with the workers' traceback. ``stack``: the JVM's, where
    the text is without."""

    code = "EF-SPARK-JOB"

    def __init__(self, message: str, stack: str = "") -> None:
        super().__init__(message)
        self.stack = stack


class SparkGoneError(SparkJobError):
    """The JVM is gone or its SparkContext was stopped: no job will ever run again in this
    process."""

    code = "EF-SPARK-GONE"


def local_property(name: str) -> str | None:
    """A local property of the running job; inside a Python worker only."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


class PreparedJob:
    """One stream thread's plan. Owned by that thread: py4j keeps local properties per Python
    thread.

    ``steps`` are the functions of the Python hops, in order, by the last level that each runs; the
    one that reads and decodes is the first, and the last one returns one row with one text column.
    Between two of them Spark computes the segment of the next level. ``slot`` names the thread
    (``t0``): its hops run in workers of their own.
    """

    def __init__(
        self,
        session: SparkSession,
        plan: PhysicalPlan,
        slot: str,
        steps: Mapping[int, StepFunction],
    ) -> None:
        PySparkLogger.getLogger("DataFrameQueryContextLogger").addFilter(_told_by_us)
        self._session, self._plan, self._slot = session, plan, slot
        self._rdd = _rdd_of(self._frame(steps))

    def run(self, properties: Mapping[str, str]) -> str:
        """Run one micro-batch with the job's local ``properties``; blocks. Returns the last step's
        text; raises SparkJobError for any failure: then nothing is known of what the workers did.
        SparkGoneError if Spark itself ended."""
        row = _only_row(self._session.sparkContext, self._rdd.collect, properties)
        return str(row.getUTF8String(0).toString())

    def close(self) -> None:
        """Forget the prepared plan; its workers end by themselves when idle."""
        self._rdd = None

    def _frame(self, steps: Mapping[int, StepFunction]) -> DataFrame:
        """Decoded records -> segment 0 -> step 0 -> segment 1 -> ... -> the last step's one row.

        In one Spark partition, so that co-partitioned topics of a task meet in one worker, in
        order, up to the marker."""
        frame, done = self._session.range(0, 1, 1, 1), None
        for level, step in steps.items():
            if done is not None:
                frame = segment(frame, self._plan, done + 1)
            frame, done = self._hop(frame, step, level), level
        return frame

    def _hop(self, frame: DataFrame, step: StepFunction, level: int) -> DataFrame:
        last = level == self._plan.levels - 1
        schema = "result string" if last else spark_schema(hop_out_of_step(self._plan, level))
        return _map_in_arrow(self._session, frame, step, schema, worker_slot(self._slot, level))


class TaskJob:
    """A micro-batch that one worker runs alone, as a job of one task. It has no rows, so it is no
    DataFrame (see `ServingJob`). Owned by one stream thread, as `PreparedJob`.

    ``serve`` returns what `run` does; it runs in the worker of ``slot``.
    """

    def __init__(self, context: SparkContext, slot: str, serve: Callable[[], str]) -> None:
        def run(rows: Iterable[int]) -> Iterable[str]:
            for _ in rows:  # a worker that leaves input unread is not used again
                pass
            return (serve(),)

        self._context = context
        with _workers_of(context, slot):
            # Without PySpark's own ``collect``, which opens a server for the result each time.
            self._rdd = context.parallelize([0], 1).mapPartitions(run)._jrdd

    def run(self, properties: Mapping[str, str]) -> str:
        """As `PreparedJob.run`."""
        (text,) = pickle.loads(_only_row(self._context, self._rdd.collect, properties))
        return str(text)

    def close(self) -> None:
        """As `PreparedJob.close`."""


def _only_row(
    context: SparkContext, collect: Callable[[], Sequence[Any]], properties: Mapping[str, str]
) -> Any:
    """What a job with these local properties gives. Raises as `PreparedJob.run`."""
    try:
        mark_as_ours(context)
        for name, text in properties.items():
            context.setLocalProperty(name, text)
        rows = collect()
        many = len(rows)  # to go on to its end takes 10 ms: Java throws an exception there
        row = rows[0] if many == 1 else None
    except (PySparkException, Py4JError, OSError, AttributeError) as error:
        raise failure(context, error) from error
    if many != 1:
        raise SparkJobError(f"the job returned {many} results instead of one")
    return row


def worker_slot(thread: str, level: int) -> str:
    """The name of the workers that run a level of a thread."""
    return f"{thread}-log" if level < 0 else f"{thread}-{level}"


class ServingJob:
    """A job of one task that calls ``serve``, whose input and output go elsewhere, and ends when
    that returns.

    It runs on a Python thread of its own; `ended` is set when it is over, `failure` says how. It
    keeps its worker for as long as it runs, so all serving jobs have one daemon, which imports once
    and forks a worker for each.

    It has no rows, so it is no DataFrame: until the first one ran, Spark loads and compiles all of
    Catalyst (3.8 s, 4.1 s of CPU; a plain job 1.4 s, 0.9 s of CPU), and many an instance never
    needs it.
    """

    def __init__(
        self,
        context: SparkContext,
        slot: str,
        serve: Callable[[], None],
        properties: Mapping[str, str],
    ) -> None:
        def run(rows: Iterable[int]) -> Iterable[int]:
            for _ in rows:  # a worker that leaves input unread is not used again
                pass
            serve()
            return ()

        self._context = context
        self._properties = dict(properties)
        self._before = _ahead.pop(slot, None)
        with _workers_of(context, SERVING_SLOT):
            self._rdd = context.parallelize([0], 1).mapPartitions(run)
            assert self._rdd._jrdd is not None  # made here, where the environment is the slot's
        self.ended = threading.Event()
        self.failure: SparkJobError | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"everflow-{slot}-serving", daemon=True
        )

    def start(self) -> None:
        """Submit the job; returns at once."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for its end."""
        return self.ended.wait(timeout_s)

    def _run(self) -> None:
        if self._before is not None:
            self._before.join(_AHEAD_S)
        try:
            mark_as_ours(self._context)
            for name, text in self._properties.items():
                self._context.setLocalProperty(name, text)
            self._rdd.collect()
        except (PySparkException, Py4JError, OSError, AttributeError) as error:
            self.failure = failure(self._context, error)
        finally:
            self.ended.set()


def launch_daemon_ahead() -> None:
    """Let the workers' daemon import while Spark starts; returns at once. For whoever is about to
    start Spark, with the path that the program has: a daemon of another one is not taken. Nothing
    happens where a Spark runs. Not for several threads at once."""
    if running_context() is not None:
        return
    with suppress(SetupError):  # told by whoever starts Spark
        prepare_environment()
        daemon_ahead.launch(worker_environment(SERVING_SLOT))


def workers_ahead(context: SparkContext, threads: int) -> None:
    """Start the workers of so many stream threads while the driver has other things to do: their
    imports and Spark's first job take 1.5 s. Returns at once; a failure is told by the job that
    then needs such a worker. Not for several threads at once."""
    for number in range(threads):
        slot = f"t{number}"
        if slot not in _ahead:
            job = ServingJob(context, slot, _nothing, {})
            _ahead[slot] = job
            job.start()


def _nothing() -> None:
    """What a worker does that is started ahead."""


def failure(context: SparkContext, error: Exception) -> SparkJobError:
    """SparkGoneError if Spark itself ended, SparkJobError otherwise. An AttributeError that is not
    about a context that was stopped in this process goes on."""
    try:
        lives = context._jsc is not None and not context._jsc.sc().isStopped()
    except (Py4JError, OSError):  # nobody answers any more
        lives = False
    if isinstance(error, AttributeError):
        if lives:
            raise error
        return SparkGoneError("its SparkContext was stopped: spark.stop() in this process?")
    # PySpark leaves the stack out of the text of the errors that it knows.
    stack = str(getattr(error, "_stackTrace", None) or "")
    return SparkJobError(str(error), stack) if lives else SparkGoneError(str(error), stack)


def _map_in_arrow(
    session: SparkSession, frame: DataFrame, step: StepFunction, schema: Any, slot: str
) -> DataFrame:
    def run_step(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return step(batches)

    with _workers_of(session.sparkContext, slot):
        return frame.mapInArrow(run_step, schema)


class _Environment(dict[str, Any]):
    """``SparkContext.environment``, the workers' environment of the whole application, with
    additions that only one thread sees: a function that the user's thread gives to Spark meanwhile
    must not run in a slot's workers."""

    def __init__(self, shared: Mapping[str, Any]) -> None:
        super().__init__(shared)
        self.mine = threading.local()

    def _added(self) -> dict[str, Any]:
        return getattr(self.mine, "added", {})

    # py4j copies it into the JVM by these two.
    def keys(self) -> Any:
        return {**dict(self.items()), **self._added()}.keys()

    def __getitem__(self, name: str) -> Any:
        added = self._added()
        return added[name] if name in added else super().__getitem__(name)


@contextmanager
def _workers_of(context: SparkContext, slot: str) -> Iterator[None]:
    """What this thread builds inside runs in the slot's workers."""
    with _environment_lock:
        if not isinstance(context.environment, _Environment):
            context.environment = _Environment(context.environment)
        environment = context.environment
    environment.mine.added = worker_environment(slot)
    try:
        yield
    finally:
        environment.mine.added = {}


def _rdd_of(frame: DataFrame) -> Any:
    """The executed plan's rows. Run as a plain job: as a SQL action every micro-batch would pay 20
    ms for an execution's events, metrics and its way through Python's deserialisers (22 ms instead
    of 43 ms for an empty batch)."""
    return frame._jdf.queryExecution().toRdd()


def worker_environment(slot: str) -> dict[str, str]:
    """Every hop of every thread gets workers of its own where a batch is a Spark job: Spark keeps
    one daemon per distinct environment. Without it any process serves any hop, and a producer or a
    store would be open in several.

    The program's folders come last on the workers' path (`everflow.spark.launch.daemon`): its
    ``queue.py`` hides no library there.
    """
    path = [os.path.abspath(entry) for entry in sys.path]  # "" is the current folder
    own = program_folders(path)
    return {
        "EVERFLOW_SLOT": slot,
        # Spark sets it for SQL's workers only; a serving job and a prepared one must mean the same
        # daemon.
        "SPARK_SIMPLIFIED_TRACEBACK": "1",
        "PYTHONPATH": os.pathsep.join(entry for entry in path if entry not in own),
        "PYTHONSAFEPATH": "1",
        "EVERFLOW_PROGRAM_PATH": os.pathsep.join(own),
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "MALLOC_ARENA_MAX": "2",
        # Columns of some megabytes come and go with each batch: given back to the system each time,
        # their pages would be taken anew at 2 us each (joining 16,384 records: 3.5 ms, then 2.4).
        "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
        **daemon_ahead.variable(),
    }
