"""Makes and names archives of a JVM's loaded classes, from which the next JVM starts (JEP 350).

Loading and verifying Spark's 15,000 classes is a third of what its first query costs in processor
time, and the archive's pages are shared by all JVMs of a machine. Java maps an archive only where
Java and class path are the same as when it was made, each jar's size and time of change included;
where they are not, it starts as without one. So a wrong archive does no harm, but no good either:
its name holds all that Java compares, and making one removes what earlier jars of the same places
have left (Spark's: 140 MB).

``everflow setup`` makes the archives; nothing else does.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from everflow.jvm.jars import cache_root, jars_folder, locked, pyspark_jars
from everflow.jvm.java import find_java

TRAINING_TIMEOUT_S = 600.0
_LINES_SHOWN = 3


@dataclass(frozen=True)
class _Training:
    """What a JVM does before its classes are archived: a module that runs it, and the variable in
    which it takes options."""

    module: str
    options: str


_TRAININGS = {
    "spark": _Training("everflow.spark.training", "SPARK_SUBMIT_OPTS"),
    "broker": _Training("everflow.testing.broker_training", "KAFKA_OPTS"),
}


def start_options(conf: str) -> list[str]:
    """Return the options with which Java starts from the archive of ``conf`` (``spark`` or
    ``broker``); none where there is none.

    Raises SetupError where Java is missing.
    """
    archive = _archive(conf)
    # Java tells on its standard output why it does not use an archive; that is nobody's concern.
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds*=off"] if archive.is_file() else []


def make_archive(conf: str) -> str | None:
    """Make the archive of ``conf`` unless it is there: starts the JVM once, which takes some 30 s.

    Returns None, or what went wrong: an archive makes starts quicker, and nothing else depends on
    it. Any number of processes may ask at once: one makes it, the others wait. Raises SetupError
    where Java is missing.
    """
    archive = _archive(conf)
    with locked(archive.with_suffix(".lock")):
        if archive.is_file():
            return None
        made = archive.with_suffix(f".{os.getpid()}")
        try:
            problem = _train(_TRAININGS[conf], made)
            if problem is None:
                _remove_earlier(archive)
                made.rename(archive)
            return problem
        finally:
            made.unlink(missing_ok=True)


def _train(training: _Training, archive: Path) -> str | None:
    # Compiled once: the training is short, and what is compiled is not archived.
    own = f"-XX:ArchiveClassesAtExit={archive} -XX:TieredStopAtLevel=1 -Xlog:cds*=off"
    options = f"{os.environ.get(training.options, '')} {own}"
    try:
        done = subprocess.run(
            [sys.executable, "-m", training.module],
            cwd=archive.parent,  # Python imports from there, too
            env={**os.environ, training.options: options.strip()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=TRAINING_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it was not made within {TRAINING_TIMEOUT_S:.0f} s"
    if done.returncode == 0 and archive.is_file():
        return None
    return "\n".join(done.stdout.splitlines()[-_LINES_SHOWN:]) or f"exit code {done.returncode}"


def _remove_earlier(archive: Path) -> None:
    """Remove the archives made for other states of the same Java and jars. A JVM that runs from one
    keeps its pages."""
    place, _, _ = archive.stem.rpartition("-")
    for earlier in archive.parent.glob(f"{place}-*{archive.suffix}"):
        earlier.unlink(missing_ok=True)


def _archive(conf: str) -> Path:
    """Where the archive for today's Java and class path lies, or would lie: one name for the places
    of Java and the jars, one for the state in which they are."""
    jars = pyspark_jars() if conf == "spark" else sorted(jars_folder(conf).glob("*.jar"))
    java = find_java().resolve()
    release = java.parent.parent / "release"
    places = [str(java), *map(str, jars)]
    states = [release.read_text() if release.is_file() else "", *map(_state, jars)]
    name = f"{conf}-{_digest(places)}-{_digest(states)}.jsa"
    return cache_root() / "class-archives" / name


def _state(jar: Path) -> str:
    told = jar.stat()
    return f"{told.st_size} {told.st_mtime_ns}"


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
