"""A PostgreSQL server of Debian's package, in a folder of its own, for one test."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from everflow.autoscale import free_port
from everflow.testing import wait_until

MISSING = "no PostgreSQL is installed: `apt-get install postgresql` brings it"
PACKAGED = Path("/usr/lib/postgresql")
"""Where Debian has its servers, each in a folder of its version."""
OWNER = "postgres"
"""The server refuses to run as root."""
USER = "shop"
WAIT_S = 60.0
SETTINGS = {
    "wal_level": "logical",
    "fsync": "off",
    "max_wal_senders": "8",
    "max_replication_slots": "8",
    "listen_addresses": "127.0.0.1",
    "timezone": "UTC",
}


@dataclass
class Postgres:
    """A server that runs."""

    binaries: Path
    folder: Path
    port: int

    def run(self, sql: str) -> str:
        """What the statements print; AssertionError with what the server says of the first that
        fails."""
        command = [str(self.binaries / "psql"), "-h", "127.0.0.1", "-p", str(self.port)]
        command += ["-U", USER, "-d", "postgres", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]
        environment = {**os.environ, "PGCLIENTENCODING": "UTF8"}
        done = subprocess.run(
            command, input=sql.encode(), capture_output=True, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout.decode()

    def answers(self) -> bool:
        command = [str(self.binaries / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def log(self) -> list[str]:
        return (self.folder / "log").read_text(errors="replace").splitlines()[-40:]


def binaries() -> Path | None:
    """The folder with ``initdb``, of the newest version; None where none is installed."""
    found = [one for one in PACKAGED.glob("*/bin") if (one / "initdb").exists()]
    if found:
        return max(found, key=lambda one: float(one.parent.name))
    on_path = shutil.which("initdb")
    return None if on_path is None else Path(on_path).parent


@contextmanager
def server(**settings: str) -> Iterator[Postgres]:
    """With these beside `SETTINGS`. Skips the test where there is none."""
    where = binaries()
    if where is None:
        pytest.skip(MISSING)
    folder = Path(tempfile.mkdtemp(prefix="everflow-postgres-"))
    as_owner: dict[str, Any] = {}
    if os.getuid() == 0:
        owner = pwd.getpwnam(OWNER)
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        as_owner = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
    data = str(folder / "data")
    made = [str(where / "initdb"), "-D", data, "-U", USER, "-A", "trust", "-N"]
    made += ["-E", "UTF8", "--locale=C"]
    subprocess.run(made, cwd=folder, check=True, capture_output=True, **as_owner)
    found = Postgres(where, folder, free_port())
    command = [str(where / "postgres"), "-D", data, "-p", str(found.port), "-k", str(folder)]
    command += [
        part for name, value in (SETTINGS | settings).items() for part in ("-c", f"{name}={value}")
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, **as_owner)
    try:
        wait_until(found.answers, WAIT_S, "PostgreSQL to answer", found.log)
        yield found
    finally:
        process.send_signal(signal.SIGINT)  # which ends its sessions
        try:
            process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)
