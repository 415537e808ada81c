"""An instance in a process of its own: `everflow run` with an address to watch it at."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everflow.autoscale.decision import InstanceSeen
from everflow.client.direct import asked

COMMAND = "from everflow.cli import main; main()"
"""The command ``everflow``, of the package that this is."""
LOOK_S = 5.0
TAIL_LINES = 15


def free_port() -> int:
    """A port of the loopback that is free now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@dataclass(kw_only=True)
class AutoscaledInstance:
    """One that was started by `start_instance`. Used by one thread."""

    number: int
    address: str
    log: Path
    process: subprocess.Popen[bytes]
    ending: bool = False
    log_begin: int = 0
    """Where its own lines begin in the log: those of earlier ones of the number stand before."""

    @property
    def where(self) -> str:
        """For people."""
        return (
            f"process {self.process.pid}, watched at http://{self.address}/status, its log: "
            f"{self.log}"
        )

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.process.poll()

    def look(self) -> dict[str, Any] | None:
        """What its `/status` says; None: it does not answer, or not yet."""
        try:
            found: dict[str, Any] = json.loads(asked(f"http://{self.address}/status", LOOK_S))
            return found
        except (OSError, ValueError):
            return None

    def seen(self) -> InstanceSeen:
        """See `InstanceSeen`."""
        status = self.look() or {}
        settled = status.get("state") == "RUNNING" and bool(status.get("ready", {}).get("ok"))
        return InstanceSeen(settled, status.get("desired_instances"), self.ending)

    def end(self, for_good: bool = True) -> None:
        """Tell it to end in order. Returns at once. ``for_good`` makes no difference here: one that
        is no static member hands its tasks over and leaves."""
        self.ending = True
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGTERM)

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within ``timeout_s``."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        return self.code is not None

    def kill(self) -> None:
        """At once, with all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def tail(self) -> str:
        """The last lines of what it said."""
        with suppress(OSError):
            said = self.log.read_bytes()[self.log_begin :].decode(errors="replace")
            return "\n".join(said.splitlines()[-TAIL_LINES:])
        return ""


def start_instance(
    number: int,
    target: str,
    options: Sequence[str],
    folder: Path,
    **more: Any,
) -> AutoscaledInstance:
    """Start `everflow run` on ``target``. ``options``: of its command line; ``folder``: its own,
    for its state and its log, kept over a restart of the number; ``more``: of
    `subprocess.Popen`."""
    folder.mkdir(parents=True, exist_ok=True)
    address, log = f"127.0.0.1:{free_port()}", folder / "instance.log"
    command = [
        *(sys.executable, "-c", COMMAND, "run", target, *options),
        *("--state-dir", str(folder / "state"), "--set", f"http.listen={address}"),
    ]
    with log.open("ab") as said:
        begin = said.tell()
        # Ctrl-C is for the autoscaler, which ends its instances in their turn
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
            **more,
        )
    return AutoscaledInstance(
        number=number, address=address, log=log, process=process, log_begin=begin
    )
