"""Does a fault to a fleet, shows that it happened, and heals it.

A fault is a generator of `Steps`: up to its `DONE` it is done, behind it it is shown to have
happened and undone. Between them others may be done. While it waits it gives `WAITING`, so that
the faults of a round heal beside each other and not one behind the other.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from chaos.elastic_group import POLL_S, GroupTimeoutError, Process
from chaos.rounds.fleet import SESSION_MS, Fleet
from chaos.rounds.load import Load
from chaos.rounds.markers import MarkerDoor
from chaos.rounds.orders import POISON, Kind
from chaos.rounds.schedule import Fault, FaultKind
from everflow.testing.broker import EmbeddedBroker
from everflow.worker.crash_points import APPLYING

REACH_S = 120.0
END_S = 120.0
TAKEN_S = 180.0
LONGEST_OUTAGE_S = 3.0
EARLY_POLL_S = 0.02
ORPHAN_S = 3.0
"""In which a worker that was let go has done its worst."""
BACK_S = 4.0
"""In which an instance whose network is back joins the group again."""
FULL_S = 60.0
"""How long a disk stays full under an instance that gets on."""
NO_ROOM = "EF-STATE-DISK"
WAITING, DONE = False, True
Steps = Generator[bool, None, None]


class NotDoneError(AssertionError):
    """A fault did not happen: what the round shows is worth nothing."""


@dataclass
class Strikes:
    """Faults of a run; `strike` each, then `heal` all. Owned by one thread."""

    fleet: Fleet
    broker: EmbeddedBroker
    load: Load
    door: MarkerDoor | None = None
    """Where it is None no markers can be late."""
    _open: list[tuple[Fault, Steps]] = field(default_factory=list)
    _pause: threading.Event = field(default_factory=threading.Event)

    def strike(self, fault: Fault) -> None:
        """Do it. NotDoneError where that cannot be."""
        self._pause.wait(fault.wait_s)
        going = self._of(fault.kind)(fault)
        self.fleet.wait(f"{fault} to be done", lambda: next(going), math.inf)
        self._open.append((fault, going))

    def heal(self) -> list[Fault]:
        """Undo everything; gives what is shown to have happened. NotDoneError for what did not."""
        healed: list[Fault] = []

        def all_are() -> bool:
            for fault, going in list(self._open):
                if next(going, None) is None:
                    self._open.remove((fault, going))
                    healed.append(fault)
            return not self._open

        hasty = any(fault.early for fault, _ in self._open)
        poll_s = EARLY_POLL_S if hasty else POLL_S
        self.fleet.wait("faults to heal", all_are, math.inf, poll_s=poll_s)
        return healed

    def give_up(self) -> None:
        """Undo everything as far as it can be, whether it is shown to have happened or not."""
        self._open.clear()
        if self.door is not None:
            self.door.hold("")
        self.broker.start()
        self.fleet.give_back()

    def _of(self, kind: FaultKind) -> Callable[[Fault], Steps]:
        return {
            FaultKind.KILL_INSTANCE: self._kill_instance,
            FaultKind.KILL_DRIVER: self._kill_instance,
            FaultKind.KILL_WORKER: self._kill_worker,
            FaultKind.KILL_JVM: self._kill_jvm,
            FaultKind.KILL_BROKER: self._broker_goes,
            FaultKind.RESTART_BROKER: self._broker_goes,
            FaultKind.PAUSE: self._pause_instance,
            FaultKind.HOLD_WORKER: self._hold_worker,
            FaultKind.ORPHAN: self._orphan,
            FaultKind.STALL: self._stall,
            FaultKind.CUT: self._cut,
            FaultKind.FULL_DISK: self._full_disk,
            FaultKind.CLOCK: self._clock,
            FaultKind.LATE_MARKERS: self._late_markers,
            FaultKind.POISON: self._records,
            FaultKind.OVERSIZED: self._records,
        }[kind]

    # --- processes -------------------------------------------------------------------------------

    def _kill_instance(self, fault: Fault) -> Steps:
        process = self.fleet.of(fault.instance)
        since = time.monotonic()
        self.fleet.kill(fault.instance, whole=fault.kind is FaultKind.KILL_INSTANCE)
        _require(process.process.returncode == -signal.SIGKILL, fault, "it ended otherwise")
        yield DONE
        yield from self._rest(since, fault.away_s)
        self.fleet.launch(fault.instance)

    def _kill_worker(self, fault: Fault) -> Steps:
        process = yield from self._busy(fault)
        found = self._caught if fault.point else self._some_worker
        pid = yield from found(process, fault)
        worker = psutil.Process(pid)
        process.family()
        worker.kill()
        psutil.wait_procs([worker], timeout=30)
        _require(not _lives(pid), fault, f"process {pid} lives")
        yield DONE

    def _kill_jvm(self, fault: Fault) -> Steps:
        process = self.fleet.of(fault.instance)
        self.fleet.may_end.add(fault.instance)
        machines = [one for one in process.family() if "java" in _name(one)]
        _require(bool(machines), fault, "it has no JVM")
        for machine in machines:
            machine.kill()
        _require(not psutil.wait_procs(machines, timeout=30)[1], fault, "its JVM lives")
        since = time.monotonic()
        yield DONE
        # It knows that it cannot go on: its workers went with Spark.
        yield from self._ended(process, fault)
        yield from self._rest(since, fault.away_s)
        self.fleet.launch(fault.instance)

    def _pause_instance(self, fault: Fault) -> Steps:
        process = yield from self._busy(fault)
        tasks, since = self.fleet.active(fault.instance), time.monotonic()
        family = process.family()
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.suspend()
        yield DONE
        yield from self._taken(tasks, fault)
        yield from self._rest(since, SESSION_MS / 1000 + fault.away_s)
        _require(_stopped(family), fault, "it did not stand still")
        for one in reversed(family):
            with suppress(psutil.NoSuchProcess):
                one.resume()

    def _hold_worker(self, fault: Fault) -> Steps:
        process, since = (yield from self._busy(fault)), time.monotonic()
        pid = yield from self._caught(process, fault)
        yield DONE
        yield from self._rest(since, fault.away_s)
        process.go(fault.point)
        yield from self._waits(
            lambda: process.passed(fault.point) or not _lives(pid), fault, "the end of the hold"
        )

    def _orphan(self, fault: Fault) -> Steps:
        """A worker in the middle of a batch outlives everything else of its instance, which starts
        again on the same disk."""
        process = yield from self._busy(fault)
        tasks = self.fleet.active(fault.instance)
        pid = yield from self._caught(process, fault)
        moves = self.fleet.moves()  # on a busy machine others begin while it ends
        # The daemon first: once its driver or its JVM is gone it ends its workers with itself.
        daemon = psutil.Process(pid).ppid()
        others = (one for one in process.family() if one.pid != pid)
        family = sorted(others, key=lambda one: one.pid != daemon)
        process.gone_s = time.time()
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        process.process.wait(30)
        psutil.wait_procs(family, timeout=30)
        _require(_lives(pid), fault, "the orphan died with its instance")
        if not fault.early:
            self.fleet.launch(fault.instance)
        yield DONE
        if fault.early:
            # Who is taking over others (of an instance that leaves, say) does not begin again.
            begun = lambda: self.fleet.moves() > moves or self.fleet.run_somewhere(tasks)  # noqa: E731
            yield from self._waits(begun, fault, "others to begin")
        elif fault.point != APPLYING:  # there it holds the store's lock: nobody gets on before it
            what = f"{', '.join(sorted(tasks))} to run again"
            yield from self._waits(lambda: self.fleet.run_somewhere(tasks), fault, what, TAKEN_S)
        if not fault.early:
            yield from self._rest(time.monotonic(), fault.away_s)
        _require(_lives(pid), fault, "the orphan did not live so long")
        process.go(fault.point)
        yield from self._waits(lambda: process.passed(fault.point), fault, "the orphan to go on")
        if fault.early:
            yield from self._rest(time.monotonic(), fault.away_s)
            self.fleet.launch(fault.instance)
        yield from self._rest(time.monotonic(), ORPHAN_S)
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()

    def _stall(self, fault: Fault) -> Steps:
        """A worker stands still in the middle of a batch while its instance loses the group, and
        finds it again."""
        process = yield from self._busy(fault)
        tasks = self.fleet.active(fault.instance)
        pid = yield from self._caught(process, fault)
        since = time.monotonic()
        self.fleet.network.cut(fault.instance)
        yield DONE
        yield from self._taken(tasks, fault)
        yield from self._rest(since, SESSION_MS / 1000)
        self.fleet.network.mend(fault.instance)
        yield from self._rest(time.monotonic(), BACK_S + fault.away_s)
        held = _lives(pid)
        process.go(fault.point)
        if held:  # else its instance has ended it, as it may
            yield from self._waits(
                lambda: process.passed(fault.point) or not _lives(pid), fault, "the end of it"
            )

    # --- surroundings ----------------------------------------------------------------------------

    def _broker_goes(self, fault: Fault) -> Steps:
        if fault.kind is FaultKind.KILL_BROKER:
            self.broker.kill()
        else:
            self.broker.stop()
        _require(not self.broker.running, fault, "the broker runs")
        self._pause.wait(min(fault.away_s, LONGEST_OUTAGE_S))
        self.broker.start()
        yield DONE

    def _cut(self, fault: Fault) -> Steps:
        yield from self._busy(fault)
        tasks, since = self.fleet.active(fault.instance), time.monotonic()
        self.fleet.network.cut(fault.instance)
        _require(not self.fleet.reaches(fault.instance), fault, "the broker is reached")
        yield DONE
        yield from self._taken(tasks, fault)
        yield from self._rest(since, SESSION_MS / 1000 + fault.away_s)
        self.fleet.network.mend(fault.instance)
        yield from self._waits(lambda: self.fleet.reaches(fault.instance), fault, "the network")

    def _full_disk(self, fault: Fault) -> Steps:
        process = yield from self._busy(fault)
        disk = self.fleet.disks[fault.instance]
        self.fleet.may_end.add(fault.instance)
        disk.fill()
        _require(disk.free_bytes() == 0, fault, f"{disk.free_bytes()} bytes are free")
        since = time.monotonic()
        yield DONE

        def gone() -> bool:
            return process.process.poll() is not None

        while not gone() and time.monotonic() < since + FULL_S:
            yield WAITING
        if not gone():  # its stores have pages of their own that they use again
            _require(disk.free_bytes() == 0, fault, "there was room again")
            disk.empty()
            yield from self._rest(time.monotonic(), BACK_S)
        if gone():
            yield from self._ended(process, fault)
            told = process.log.read_text(errors="replace")
            _require(NO_ROOM in told, fault, f"it ended, but said nothing of {NO_ROOM}")
            disk.empty()
            self.fleet.launch(fault.instance)
        self.fleet.may_end.discard(fault.instance)

    def _clock(self, fault: Fault) -> Steps:
        process, clock = self.fleet.of(fault.instance), self.fleet.clocks[fault.instance]
        clock.turn(fault.minutes)
        since = time.monotonic()
        yield DONE

        def shown() -> bool:
            last = process.events.last("lag")
            off_s = 0.0 if last is None else last.at_s - time.time()
            return off_s * (1 if fault.minutes > 0 else -1) > abs(fault.minutes) * 30

        if process.gone_s is None:
            yield from self._waits(shown, fault, "an event at the wrong time")
        yield from self._rest(since, fault.away_s)
        clock.turn(0)

    def _late_markers(self, fault: Fault) -> Steps:
        """An instance leaves in order and comes back while some of the markers are late: nobody is
        fenced, and its tasks change owners with a last transaction that shows only in part."""
        door = self.door
        if door is None:
            raise NotDoneError(f"{fault} did not happen: the broker's markers come by no door")
        yield from self._busy(fault)
        door.hold(fault.late)
        yield DONE
        yield from self._waits(lambda: self._first_of_its_kind(fault), fault, "its turn", TAKEN_S)
        door.hold(fault.late)  # again: it may be late elsewhere since another fault of the round
        held, tasks = door.held, self.fleet.active(fault.instance)
        self.fleet.leave(fault.instance)
        yield from self._taken(tasks, fault)
        process = self.fleet.launch(fault.instance)
        yield from self._waits(lambda: process.view().running, fault, "its next life")
        yield from self._waits(lambda: door.held > held, fault, "a marker that is late")
        door.hold("")

    # --- records ---------------------------------------------------------------------------------

    def _records(self, fault: Fault) -> Steps:
        kinds: Sequence[Kind] = POISON if fault.kind is FaultKind.POISON else (Kind.OVERSIZED,)
        self.load.ask([kind for kind in kinds for _ in range(fault.records)])
        yield DONE
        # That they arrive where they should is the checker's.
        yield from self._waits(
            lambda: self.load.asked_for == 0, fault, "the bad records to be sent"
        )

    # --- small things ----------------------------------------------------------------------------

    def _first_of_its_kind(self, fault: Fault) -> bool:
        return fault == next(one for one, _ in self._open if one.kind is fault.kind)

    def _busy(self, fault: Fault) -> Generator[bool, None, Process]:
        """The instance, once it runs a task."""
        yield from self._waits(
            lambda: bool(self.fleet.active(fault.instance)), fault, "a task to run there"
        )
        return self.fleet.of(fault.instance)

    def _caught(self, process: Process, fault: Fault) -> Generator[bool, None, int]:
        process.arm(fault.point)
        yield from self._waits(
            lambda: process.reached(fault.point), fault, f"a worker at {fault.point}"
        )
        return process.caught(fault.point)

    def _some_worker(self, process: Process, fault: Fault) -> Generator[bool, None, int]:
        def workers() -> list[int]:
            return [
                one.pid
                for one in process.family()[1:]
                if "python" in _name(one) and not _children(one)
            ]

        yield from self._waits(lambda: bool(workers()), fault, "a worker")
        return workers()[-1]

    def _taken(self, tasks: frozenset[str], fault: Fault) -> Steps:
        what = f"others to take over {', '.join(sorted(tasks))}"
        yield from self._waits(
            lambda: self.fleet.run_somewhere(tasks, but=fault.instance),
            fault,
            what,
            TAKEN_S,
        )

    def _ended(self, process: Process, fault: Fault) -> Steps:
        yield from self._waits(lambda: process.process.poll() is not None, fault, "its end", END_S)
        process.gone_s = process.gone_s or time.time()

    def _waits(
        self, reached: Callable[[], bool], fault: Fault, what: str, timeout_s: float = REACH_S
    ) -> Steps:
        """Until it is so. GroupTimeoutError when the time is over."""
        until_s = time.monotonic() + timeout_s
        while not reached():
            if time.monotonic() > until_s:
                told = self.fleet.failure(f"waited {timeout_s:.0f} s for {what} ({fault})")
                raise GroupTimeoutError(str(told))
            yield WAITING

    def _rest(self, since: float, seconds: float) -> Steps:
        while time.monotonic() < since + seconds:
            yield WAITING


def _require(so: bool, fault: Fault, otherwise: str) -> None:
    if not so:
        raise NotDoneError(f"{fault} did not happen: {otherwise}")


def _lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _stopped(family: Sequence[psutil.Process]) -> bool:
    """Whether all that is left of it stands still."""
    for one in family:
        with suppress(psutil.NoSuchProcess):
            if one.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
                return False
    return True


def _name(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return str(process.name())
    return ""


def _children(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return list(process.children())
    return []
