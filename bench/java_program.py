"""The Kafka Streams program of the benches: its class path and how it is compiled."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from everflow.jvm.java import find_java

SOURCES = Path(__file__).with_name("java")
MAIN_CLASS = "CountBench"
COMPILE_TIMEOUT_S = 120.0


class NoJavaCompilerError(RuntimeError):
    """This Java can neither compile a source file nor launch one."""


def java_command(jars: Sequence[Path], class_folder: Path) -> list[str]:
    """The command, without arguments, that starts `CountBench`.

    Compiles into `class_folder` with the `javac` beside `java`, or with the compiler inside `java`
    (module jdk.compiler). Raises `NoJavaCompilerError` where a JRE has neither,
    `everflow.errors.SetupError` where there is no Java.
    """
    java = find_java().resolve()
    javac = java.with_name("javac")
    class_path = os.pathsep.join([str(class_folder), *(str(jar) for jar in jars)])
    if javac.is_file():
        compiler = [str(javac)]
    elif "jdk.compiler" in _run([str(java), "--list-modules"]):
        compiler = [str(java), "-m", "jdk.compiler/com.sun.tools.javac.Main"]
    else:
        raise NoJavaCompilerError(
            f"The Kafka Streams side of the bench must be compiled, and {java} has no compiler. "
            f"Install a "
            "JDK (Debian, Ubuntu: openjdk-17-jdk-headless), or measure everflow alone: --systems "
            "everflow."
        )
    class_folder.mkdir(parents=True, exist_ok=True)
    sources = [str(source) for source in sorted(SOURCES.glob("*.java"))]
    _run([*compiler, "-cp", class_path, "-d", str(class_folder), *sources])
    return [str(java), "-cp", class_path, MAIN_CLASS]


def _run(command: list[str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout
