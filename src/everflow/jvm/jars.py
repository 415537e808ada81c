"""Resolves the JVM's class paths once, into a cache outside the checkout.

The jars come through the Ivy that ships inside pyspark, run as a child process with the pinned
module file ``everflow/ivy/ivy.xml``; so everflow needs neither Maven nor a download address of its
own. Only the standard library is imported here, and pyspark is located without importing it.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from everflow.errors import SetupError
from everflow.jvm.java import find_java

CONFS = ("broker", "streams", "flink", "oracle")

_IVY_FOLDER = Path(__file__).parents[1] / "ivy"
_RESOLVE_TIMEOUT_S = 900.0
_RESOLVE_ATTEMPTS = 2  # one dropped connection among fifty downloads should not fail a set-up


def resolve_jars(conf: str, *, progress: Callable[[str], None] | None = None) -> list[Path]:
    """Return the jars of one class path, sorted by name; downloads them on first use.

    Args:
        conf: ``broker`` (a Kafka broker) or ``streams`` (Kafka Streams in Java) or
            ``flink`` (Flink SQL), for the benches, or ``oracle`` (its test driver).
        progress: told one line when a download starts; never called when the jars are there.

    The cache is ``$XDG_CACHE_HOME/everflow`` (default ``~/.cache/everflow``), keyed by the hash of
    the module file. A class path appears there complete or not at all; any number of processes may
    ask at once. EVERFLOW_IVY_SETTINGS names an Ivy settings file to use instead of ours, for
    mirrors and firewalls.

    Raises:
        SetupError: no Java, no pyspark, or Ivy could not resolve (code ``EF-JARS``; with Ivy's
        reasons).
    """
    if conf not in CONFS:
        raise ValueError(f"unknown class path {conf!r}: one of {', '.join(CONFS)}")
    target = jars_folder(conf)
    if not target.is_dir():
        with locked(cache_root() / "jars.lock"):
            if not target.is_dir():
                if progress is not None:
                    progress(f"downloading the JVM jars of '{conf}' into {target}")
                _download(conf, target)
    return sorted(target.glob("*.jar"))


def jars_folder(conf: str) -> Path:
    """Return the folder that holds, or will hold, the jars of ``conf``; it exists only when
    complete."""
    key = hashlib.sha256((_IVY_FOLDER / "ivy.xml").read_bytes()).hexdigest()[:16]
    return cache_root() / "jars" / key / conf


def cache_root() -> Path:
    """Return everflow's folder for what can be made again: ``$XDG_CACHE_HOME/everflow``."""
    configured = os.environ.get("XDG_CACHE_HOME")
    return (Path(configured) if configured else Path.home() / ".cache") / "everflow"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Of all processes that ask with this file one is inside at a time; it waits for the others as
    long as they take."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        # Released by the system when the process dies, however it dies.
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _download(conf: str, target: Path) -> None:
    """Resolve into a fresh folder beside ``target``, then rename: readers never see half a class
    path."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{conf}-", dir=target.parent))
    try:
        for attempt in range(_RESOLVE_ATTEMPTS):
            problem = _run_ivy(conf, staging)
            if problem is None:
                break
            if attempt == _RESOLVE_ATTEMPTS - 1:
                raise SetupError(
                    f"the JVM jars of '{conf}' could not be resolved. Ivy says:\n{problem}\n"
                    "Check the network, or let EVERFLOW_IVY_SETTINGS name a settings file with "
                    "your mirror.",
                    code="EF-JARS",
                )
        staging.chmod(0o755)
        staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _run_ivy(conf: str, staging: Path) -> str | None:
    """Run Ivy once; return None, or what it complained of."""
    ivy_home = cache_root() / "ivy"
    settings = os.environ.get("EVERFLOW_IVY_SETTINGS") or str(_IVY_FOLDER / "ivysettings.xml")
    command = [str(find_java()), f"-Divy.default.ivy.user.dir={ivy_home}", "-jar", str(_ivy_jar())]
    # A cache of its own: a local Maven or Ivy folder that holds only poms makes Ivy fail.
    command += [
        "-warn",
        "-settings",
        settings,
        "-ivy",
        str(_IVY_FOLDER / "ivy.xml"),
        "-cache",
        str(ivy_home / "cache"),
    ]
    # snappy-java's artifact type is `bundle`; without it the broker could not read compressed
    # batches.
    command += ["-confs", conf, "-types", "jar", "bundle"]
    command += ["-retrieve", f"{staging}/[artifact]-[revision](-[classifier]).[ext]"]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=_RESOLVE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_RESOLVE_TIMEOUT_S:.0f} s"
    # Ivy reports an unresolved module in its text and in the exit code of some versions only.
    if (
        done.returncode == 0
        and "UNRESOLVED" not in done.stdout
        and "FAILED DOWNLOADS" not in done.stdout
        and any(staging.glob("*.jar"))
    ):
        return None
    lines = [line for line in done.stdout.splitlines() if line.strip(" .:\t") and "kB)" not in line]
    return "\n".join(lines[-20:]) or f"exit code {done.returncode}"


def pyspark_jars() -> list[Path]:
    """Return the jars that pyspark ships, sorted by name; none where it is not installed, or
    without them. Does not import it."""
    spec = importlib.util.find_spec("pyspark")
    folders = spec.submodule_search_locations or [] if spec else []
    return sorted(jar for folder in folders for jar in Path(folder).glob("jars/*.jar"))


def _ivy_jar() -> Path:
    for jar in pyspark_jars():
        if jar.name.startswith("ivy-"):
            return jar
    raise SetupError(
        (
            "pyspark is not installed in this Python, or not with its jars: pip install "
            "'pyspark>=4.2,<4.4'"
        ),
        code="EF-JARS",
    )
