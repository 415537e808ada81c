"""The Java programs of the benches: their class path and how they are compiled."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from everflow.jvm import find_java

KAFKA_STREAMS_SOURCES = Path(__file__).with_name("java")
KAFKA_STREAMS_MAIN = "CountBench"
FLINK_SOURCES = Path(__file__).with_name("flink")
FLINK_MAIN = "FlinkSql"
COMPILE_TIMEOUT_S = 120.0


class NoJavaCompilerError(RuntimeError):
    """This Java can neither compile a source file nor launch one."""


def java_command(
    jars: Sequence[Path],
    class_folder: Path,
    source_folder: Path = KAFKA_STREAMS_SOURCES,
    main_class: str = KAFKA_STREAMS_MAIN,
) -> list[str]:
    """The command, without arguments, that starts `main_class`.

    Compiles what is in `source_folder` into `class_folder` with the `javac` beside `java`, or with
    the compiler inside `java` (module jdk.compiler). Raises `NoJavaCompilerError` where a JRE has
    neither, `everflow.errors.SetupError` where there is no Java.
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
            f"The Java side of the bench must be compiled, and {java} has no compiler. Install a "
            "JDK (Debian, Ubuntu: openjdk-17-jdk-headless), or measure everflow alone: --systems "
            "everflow."
        )
    class_folder.mkdir(parents=True, exist_ok=True)
    sources = [str(source) for source in sorted(source_folder.glob("*.java"))]
    _run([*compiler, "-cp", class_path, "-d", str(class_folder), *sources])
    return [str(java), "-cp", class_path, main_class]


def _run(command: list[str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout
