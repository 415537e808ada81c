"""Finds Java. Only the standard library is imported here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

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
    """Return the ``java`` to use: JAVA_HOME's, else the one on PATH, else one in a usual place of
    the system.

    Candidates older than Java 17, or without the module ``jdk.incubator.vector`` that Spark's
    launcher asks for, are passed over. The answer is kept per value of JAVA_HOME and PATH.

    Raises:
        SetupError: code ``EF-JAVA-NOT-FOUND``; the message lists what was seen and how to install
        Java.
    """
    return _find_java(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))


def install_command() -> str:
    """Return the command that installs a fitting Java on this system, for messages."""
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
    """Say why this ``java`` cannot be used, or None. Reads ``release``: starting a JVM costs 100
    ms."""
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
        answer = subprocess.run(
            [str(java), "-version"],
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    return match.group(1) if match else None


def _os_ids() -> set[str]:
    try:
        text = Path("/etc/os-release").read_text()
    except OSError:
        return set()
    ids = " ".join(re.findall(r'^ID(?:_LIKE)?="?([^"\n]*)"?$', text, re.MULTILINE))
    return {part.split("-")[0] for part in ids.split()}
