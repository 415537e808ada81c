"""What lies between an instance and the rest of the world, so that it can be taken away: a network,
a disk, a clock.

A network namespace per instance, joined by a bridge, where this process may make them (root, with
iproute2); elsewhere a `KafkaProxy` per instance. A disk is a small tmpfs, a clock a library that
the dynamic linker loads first; where the machine has no leave or no compiler for them, `possible`
leaves their faults out.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import psutil

from chaos.rounds.schedule import INSTANCES, FaultKind
from everflow.testing.kafka_proxy import KafkaProxy

DISK_MB = 48
"""At the usual pace; `disk_mb`."""
USUAL_RATE = 40.0
COMMAND_S = 30.0
CLOCK_VARIABLE = "EVERFLOW_CHAOS_CLOCK"
_PREFIX = "efc"
"""Before the pid of the run, in the names of what it makes."""
_SHIM = Path(__file__).with_name("clock_shim.c")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMMAND_S)


def _works(*command: str) -> bool:
    try:
        _run(*command)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


# --- networks -------------------------------------------------------------------------------------


class Network(Protocol):
    """How an instance reaches the broker; used by one thread."""

    name: str
    """What it is made of, for people."""

    @property
    def host(self) -> str:
        """The address the broker has to listen at."""

    def command(self, instance: int) -> Sequence[str]:
        """What an instance's command line begins with."""

    def bootstrap(self, instance: int, broker: str) -> str:
        """The broker's address, as the instance sees it."""

    def cut(self, instance: int) -> None:
        """Nothing gets through any more, and nobody is told."""

    def mend(self, instance: int) -> None:
        """It gets through again."""

    def close(self) -> None:
        """Take it down."""


class Namespaces:
    """A bridge, and behind it a namespace with one link for each instance."""

    name = "namespaces"

    def __init__(self) -> None:
        self._name = f"{_PREFIX}{os.getpid()}"
        self._net = f"10.{64 + os.getpid() // 256 % 128}.{os.getpid() % 256}"
        self.host = f"{self._net}.1"
        try:
            _run("ip", "link", "add", self._name, "type", "bridge")
            _run("ip", "addr", "add", f"{self.host}/24", "dev", self._name)
            _run("ip", "link", "set", self._name, "up")
            for instance in range(1, INSTANCES + 1):
                self._join(instance)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def possible() -> bool:
        """Whether this process may make them."""
        name = f"eft{os.getpid() % 100_000}"
        made = (
            _works("ip", "netns", "add", name)
            and _works("ip", "link", "add", name, "type", "bridge")
            and _works("ip", "link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b")
        )
        _works("ip", "link", "del", f"{name}a")
        _works("ip", "link", "del", name)
        _works("ip", "netns", "del", name)
        return made

    def _space(self, instance: int) -> str:
        return f"{self._name}-{instance}"

    def _link(self, instance: int) -> str:
        return f"{self._name}v{instance}"

    def _join(self, instance: int) -> None:
        space, link = self._space(instance), self._link(instance)
        _run("ip", "netns", "add", space)
        _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        _run("ip", "link", "set", link, "master", self._name, "up")
        within = ("ip", "-n", space)
        _run(*within, "addr", "add", f"{self._net}.{instance + 1}/24", "dev", "eth0")
        _run(*within, "link", "set", "eth0", "up")
        _run(*within, "link", "set", "lo", "up")

    def command(self, instance: int) -> Sequence[str]:
        """See `Network`."""
        return ("ip", "netns", "exec", self._space(instance))

    def bootstrap(self, instance: int, broker: str) -> str:
        """See `Network`."""
        return broker

    def cut(self, instance: int) -> None:
        """See `Network`."""
        # Off the bridge: the instance's own link stays up, so nothing tells it.
        _run("ip", "link", "set", self._link(instance), "nomaster")

    def mend(self, instance: int) -> None:
        """See `Network`."""
        _run("ip", "link", "set", self._link(instance), "master", self._name)

    def close(self) -> None:
        """See `Network`."""
        for instance in range(1, INSTANCES + 1):
            _works("ip", "link", "del", self._link(instance))
            _works("ip", "netns", "del", self._space(instance))
        _works("ip", "link", "del", self._name)


class Proxies:
    """A proxy for each instance."""

    name = "proxies"
    host = "127.0.0.1"

    def __init__(self) -> None:
        self._proxies: dict[int, KafkaProxy] = {}

    def command(self, instance: int) -> Sequence[str]:
        """See `Network`."""
        return ()

    def bootstrap(self, instance: int, broker: str) -> str:
        """See `Network`."""
        if instance not in self._proxies:
            self._proxies[instance] = KafkaProxy(broker).start()
        return self._proxies[instance].bootstrap_servers

    def cut(self, instance: int) -> None:
        """See `Network`."""
        self._proxies[instance].cut(silent=True)

    def mend(self, instance: int) -> None:
        """See `Network`."""
        self._proxies[instance].mend()

    def close(self) -> None:
        """See `Network`."""
        for proxy in self._proxies.values():
            proxy.close()


def network() -> Network:
    """The best there is here."""
    return Namespaces() if Namespaces.possible() else Proxies()


# --- disks ----------------------------------------------------------------------------------------


def disk_mb(rate: float) -> int:
    """Room for what comes at ``rate`` orders/s in a quarter of an hour; a copy on a disk takes some
    400 bytes an order."""
    return max(DISK_MB, round(DISK_MB * rate / USUAL_RATE / 2))


class SmallDisk:
    """A tmpfs of ``mb`` at ``path``."""

    def __init__(self, path: Path, mb: int = DISK_MB) -> None:
        self.path = path
        path.mkdir(parents=True)
        source, options = f"{_PREFIX}{os.getpid()}", f"size={mb}m,mode=700"
        _run("mount", "-t", "tmpfs", "-o", options, source, str(path))

    @staticmethod
    def possible(folder: Path) -> bool:
        """Whether this process may mount one."""
        try:
            SmallDisk(folder / "trial").close()
        except (OSError, subprocess.SubprocessError):
            return False
        return True

    @property
    def _ballast(self) -> Path:
        return self.path / "ballast"

    def fill(self) -> None:
        """To the last byte."""
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def free_bytes(self) -> int:
        """What is left."""
        return shutil.disk_usage(self.path).free

    def empty(self) -> None:
        """Make room again."""
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount; lazily, as somebody may still have a file open."""
        _works("umount", "-l", str(self.path))


# --- clocks ---------------------------------------------------------------------------------------


class Clock:
    """The wall clock of an instance and all it starts; `turn` moves it while they run."""

    def __init__(self, file: Path, library: Path) -> None:
        self._file, self._library = file, library
        file.write_bytes(struct.pack("=q", 0))

    @staticmethod
    def library(folder: Path) -> Path | None:
        """What is loaded into the processes; None where it cannot be made."""
        made = folder / "clock_shim.so"
        compiler = shutil.which("cc") or shutil.which("gcc")
        if not sys.platform.startswith("linux") or compiler is None:
            return None
        built = _works(compiler, "-O1", "-shared", "-fPIC", "-o", str(made), str(_SHIM), "-ldl")
        return made if built else None

    @property
    def environment(self) -> Mapping[str, str]:
        """Of the instance."""
        return {"LD_PRELOAD": str(self._library), CLOCK_VARIABLE: str(self._file)}

    def turn(self, minutes: int) -> None:
        """So far from the right time."""
        with self._file.open("r+b") as file, mmap.mmap(file.fileno(), 8) as there:
            there[:8] = struct.pack("=q", minutes * 60_000)


def sweep() -> None:
    """Take down what runs that were killed have left on this machine."""
    with suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            source, place, *_ = line.split()
            if _of_the_dead(source):
                _works("umount", "-l", place)
    with suppress(OSError):
        for link in sorted(path.name for path in Path("/sys/class/net").iterdir()):
            if _of_the_dead(link):
                _works("ip", "link", "del", link)
        for space in sorted(path.name for path in Path("/run/netns").iterdir()):
            if _of_the_dead(space):
                _works("ip", "netns", "del", space)


def _of_the_dead(name: str) -> bool:
    made = re.match(rf"{_PREFIX}(\d+)(v\d+|-\d+)?$", name)
    return made is not None and not psutil.pid_exists(int(made[1]))


def possible(folder: Path) -> frozenset[FaultKind]:
    """The faults that can be made on this machine; ``folder`` is for trials."""
    kinds = set(FaultKind)
    if not SmallDisk.possible(folder):
        kinds.discard(FaultKind.FULL_DISK)
    with suppress(OSError):
        if Clock.library(folder) is None:
            kinds.discard(FaultKind.CLOCK)
    return frozenset(kinds)
