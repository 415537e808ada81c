"""The JVMs that everflow starts (Spark, the embedded broker): Java, class paths, class archives.

The jars come through the Ivy inside pyspark, with the pinned ``everflow/ivy/ivy.xml``. A JVM starts
quicker from an archive of its loaded classes (JEP 350), which Java maps only where Java and class
path, each jar's size and time of change included, are as they were: its name holds all that. Only
``everflow setup`` makes archives.
Imports the standard library and the errors alone: a command asks before anything else is there.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from everflow.errors import SetupError

MIN_JAVA = 17

# (ids of /etc/os-release, command): the first match in ID and ID_LIKE wins.
_INSTALL_COMMANDS = (
    (
        ("debian", "ubuntu"),
        "sudo apt-get install openjdk-17-jre-headless   (newer releases: openjdk-21-jre-headless)",
    ),
    (("fedora",), "sudo dnf install java-21-openjdk-headless"),
    (("rhel", "centos", "amzn"), "sudo dnf install java-17-openjdk-headless"),
    (("arch",), "sudo pacman -S jre17-openjdk-headless"),
    (("alpine",), "sudo apk add openjdk17-jre-headless"),
    (("suse", "opensuse"), "sudo zypper install java-17-openjdk-headless"),
)


def find_java() -> Path:
    """Return the ``java`` to use: JAVA_HOME's, the one on PATH, or one in a usual place; kept by
    value of both. None older than Java 17 or without Spark's ``jdk.incubator.vector``.

    Raises SetupError (``EF-JAVA-NOT-FOUND``), which lists what was seen and how to install Java.
    """
    return _find_java(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))


def install_command() -> str:
    if sys.platform == "darwin":
        return "brew install openjdk@17"
    ids = _os_ids()
    for names, command in _INSTALL_COMMANDS:
        if any(name in ids for name in names):
            return command
    return f"install a Java runtime {MIN_JAVA} or newer with your system's package manager"


@lru_cache(maxsize=8)
def _find_java(java_home: str, path: str) -> Path:
    seen: list[str] = []
    for candidate in _candidates(java_home, path):
        reason = _unfit(candidate)
        if reason is None:
            return candidate
        seen.append(f"{candidate}: {reason}")
    found = (
        "".join(f"\n  {line}" for line in seen)
        or "\n  none in JAVA_HOME, on PATH or in the usual places"
    )
    raise SetupError(
        f"Java {MIN_JAVA} or newer is needed to run Spark and Kafka. Seen:{found}\n"
        f"To install it:\n  {install_command()}",
        code="EF-JAVA-NOT-FOUND",
    )


def _candidates(java_home: str, path: str) -> Iterator[Path]:
    tried: set[Path] = set()
    places: list[Path] = []
    if java_home:
        places.append(Path(java_home) / "bin" / "java")
    if on_path := shutil.which("java", path=path):
        places.append(Path(on_path))
    places += sorted(Path("/usr/lib/jvm").glob("*/bin/java"), reverse=True)
    places += [
        Path(f"{prefix}/opt/openjdk@{n}/bin/java")
        for prefix in ("/opt/homebrew", "/usr/local")
        for n in (17, 21)
    ]
    for place in places:
        if place.is_file() and os.access(place, os.X_OK) and (real := place.resolve()) not in tried:
            tried.add(real)
            yield place


def _unfit(java: Path) -> str | None:
    """Say why this ``java`` cannot be used. Reads ``release``: starting a JVM costs 100 ms."""
    release = java.resolve().parent.parent / "release"
    facts = (
        dict(re.findall(r'^(\w+)="(.*)"$', release.read_text(), re.MULTILINE))
        if release.is_file()
        else {}
    )
    version = facts.get("JAVA_VERSION") or _asked_version(java)
    if version is None:
        return "does not tell its version"
    numbers = [int(n) for n in re.findall(r"\d+", version)]
    major = numbers[1] if numbers[:1] == [1] and len(numbers) > 1 else (numbers or [0])[0]
    if major < MIN_JAVA:
        return f"version {version} is too old"
    modules = facts.get("MODULES")
    if modules is not None and "jdk.incubator.vector" not in modules.split():
        return "lacks the module jdk.incubator.vector, which Spark asks for"
    return None


def _asked_version(java: Path) -> str | None:
    try:
        answer = _ran([str(java), "-version"], 60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "([^"]+)"', answer.stdout)
    return match.group(1) if match else None


def _ran(
    command: list[str],
    timeout_s: float,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """The finished process, with all that it has written in ``stdout``. OSError, TimeoutExpired."""
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
        **options,
    )


def _os_ids() -> set[str]:
    try:
        text = Path("/etc/os-release").read_text()
    except OSError:
        return set()
    ids = " ".join(re.findall(r'^ID(?:_LIKE)?="?([^"\n]*)"?$', text, re.MULTILINE))
    return {part.split("-")[0] for part in ids.split()}


CONFS = (
    *("broker", "streams", "streams-4.2", "flink", "oracle"),
    *("schemas", "registry", "connect", "spark-avro"),
)

_IVY_FOLDER = Path(__file__).with_name("ivy")
_RESOLVE_TIMEOUT_S = 900.0
_RESOLVE_ATTEMPTS = 2  # one dropped connection among fifty downloads should not fail a set-up


def resolve_jars(conf: str, *, progress: Callable[[str], None] | None = None) -> list[Path]:
    """Return the jars of one class path, sorted by name; downloads them on first use.

    Args:
        conf: ``broker`` (a Kafka broker) or ``streams``, ``streams-4.2`` (Kafka Streams in Java) or
            ``flink`` (Flink SQL), for the benches, ``oracle`` (its test driver), and so on: see
            ``everflow/ivy/ivy.xml``. ``registry`` has no jar: it is an archive in `jars_folder`.
        progress: gets one line when a download starts; never called when the jars are there.

    The cache (`cache_root`) is keyed by the hash of the module file. A class path appears there
    complete or not at all; any number of processes may ask at once. EVERFLOW_IVY_SETTINGS names an
    Ivy settings file to use instead of ours, for mirrors and firewalls.

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
    """Return the folder of the jars of ``conf``; it exists only when complete."""
    key = hashlib.sha256((_IVY_FOLDER / "ivy.xml").read_bytes()).hexdigest()[:16]
    return cache_root() / "jars" / key / conf


def cache_root() -> Path:
    """Return everflow's folder for what can be made again: ``$XDG_CACHE_HOME/everflow``."""
    configured = os.environ.get("XDG_CACHE_HOME")
    return (Path(configured) if configured else Path.home() / ".cache") / "everflow"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time is inside for this file; the others wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        # Released by the system when the process dies, however it dies.
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _download(conf: str, target: Path) -> None:
    """Resolve into a fresh folder, then rename: readers never see half a class path."""
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
    command += ["-confs", conf, "-types", "jar", "bundle", "tar.gz"]
    command += ["-retrieve", f"{staging}/[artifact]-[revision](-[classifier]).[ext]"]
    try:
        done = _ran(command, _RESOLVE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"no answer within {_RESOLVE_TIMEOUT_S:.0f} s"
    # Ivy reports an unresolved module in its text and in the exit code of some versions only.
    if (
        done.returncode == 0
        and "UNRESOLVED" not in done.stdout
        and "FAILED DOWNLOADS" not in done.stdout
        and any(staging.iterdir())
    ):
        return None
    lines = [line for line in done.stdout.splitlines() if line.strip(" .:\t") and "kB)" not in line]
    return "\n".join(lines[-20:]) or f"exit code {done.returncode}"


def pyspark_jars() -> list[Path]:
    """Return the jars that pyspark ships, sorted by name, if any. Does not import it."""
    spec = importlib.util.find_spec("pyspark")
    folders = spec.submodule_search_locations or [] if spec else []
    return sorted(jar for folder in folders for jar in Path(folder).glob("jars/*.jar"))


def _ivy_jar() -> Path:
    found = next((jar for jar in pyspark_jars() if jar.name.startswith("ivy-")), None)
    if found is None:
        raise SetupError(
            "pyspark is not installed in this Python, or not with its jars: pip install "
            "'pyspark>=4.2,<4.4'",
            code="EF-JARS",
        )
    return found


TRAINING_TIMEOUT_S = 600.0
_LINES_SHOWN = 3


_TRAININGS = {
    "spark": ("everflow.spark.training", "SPARK_SUBMIT_OPTS"),
    "broker": ("everflow.testing.broker_training", "KAFKA_OPTS"),
}
"""The run of a JVM before its classes are archived: its module, and the variable in which it takes
options."""


_AS_IT_WAS_MADE = (
    # Java tells on its standard output why it does not use an archive; that is nobody's concern.
    "-Xlog:cds*=off",
    # Java writes new addresses into the archive at each start, so that nobody can know where
    # classes lie: 100 MiB of its pages become the process's own. Where that is no option of this
    # Java, it starts all the same.
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:ArchiveRelocationMode=0",
)


def start_options(conf: str) -> list[str]:
    """Return the options for Java to start from the archive of ``conf`` (``spark``, ``broker``).

    Raises SetupError where Java is missing.
    """
    archive = _archive(conf)
    return [f"-XX:SharedArchiveFile={archive}", *_AS_IT_WAS_MADE] if archive.is_file() else []


def make_archive(conf: str) -> str | None:
    """Make the archive of ``conf`` unless it is there: starts the JVM once, which takes some 30 s.

    Returns None, or what went wrong; of several processes one makes it. SetupError without Java.
    """
    archive = _archive(conf)
    with locked(archive.with_suffix(".lock")):
        if archive.is_file():
            return None
        made = archive.with_suffix(f".{os.getpid()}")
        try:
            problem = _train(*_TRAININGS[conf], made)
            if problem is None:
                _remove_earlier(archive)
                made.rename(archive)
            return problem
        finally:
            made.unlink(missing_ok=True)


def _train(module: str, variable: str, archive: Path) -> str | None:
    # Compiled once: the training is short, and what is compiled is not archived.
    own = f"-XX:ArchiveClassesAtExit={archive} -XX:TieredStopAtLevel=1 -Xlog:cds*=off"
    options = f"{os.environ.get(variable, '')} {own}"
    try:
        # Python imports from the current folder, too.
        environment = {**os.environ, variable: options.strip()}
        command = [sys.executable, "-m", module]
        done = _ran(command, TRAINING_TIMEOUT_S, cwd=archive.parent, env=environment)
    except subprocess.TimeoutExpired:
        return f"it was not made within {TRAINING_TIMEOUT_S:.0f} s"
    if done.returncode == 0 and archive.is_file():
        return None
    return "\n".join(done.stdout.splitlines()[-_LINES_SHOWN:]) or f"exit code {done.returncode}"


def _remove_earlier(archive: Path) -> None:
    """Remove the archives for other states of the same Java and jars; a running JVM keeps its
    pages."""
    place, _, _ = archive.stem.rpartition("-")
    for earlier in archive.parent.glob(f"{place}-*{archive.suffix}"):
        earlier.unlink(missing_ok=True)


def _archive(conf: str) -> Path:
    """The path of the archive for today's Java and class path: one name for places, one for
    state."""
    jars = pyspark_jars() if conf == "spark" else sorted(jars_folder(conf).glob("*.jar"))
    java = find_java().resolve()
    release = java.parent.parent / "release"
    places = [str(java), *map(str, jars)]
    states = [release.read_text() if release.is_file() else "", *map(_state, jars)]
    name = f"{conf}-{_digest(places)}-{_digest(states)}.jsa"
    return cache_root() / "class-archives" / name


def _state(jar: Path) -> str:
    facts = jar.stat()
    return f"{facts.st_size} {facts.st_mtime_ns}"


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
