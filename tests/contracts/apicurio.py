"""Apicurio's schema registry, from Maven, in memory: what `everflow.testing.SchemaRegistry` stands
for in tests. It answers Confluent's requests below ``/apis/ccompat/v7``."""

import socket
import subprocess
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everflow.jvm import find_java, jars_folder, resolve_jars
from everflow.testing.waiting import wait_until

STARTED_S = 180.0


@contextmanager
def apicurio(folder: Path) -> Iterator[str]:
    """Its URL. ``folder``: where it is unpacked."""
    resolve_jars("registry")
    (archive,) = jars_folder("registry").glob("*.tar.gz")
    with tarfile.open(archive) as found:
        found.extractall(folder, filter="data")
    (jar,) = folder.glob("*runner.jar")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(find_java()), "-Xmx512m", "-Dquarkus.http.host=127.0.0.1"]
    command += [f"-Dquarkus.http.port={port}", "-jar", str(jar)]
    log = folder / "log.txt"
    with (
        log.open("w") as out,
        subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=folder) as process,
    ):
        url = f"http://127.0.0.1:{port}/apis/ccompat/v7"

        def answers() -> bool:
            assert process.poll() is None, log.read_text()[-2_000:]
            try:
                with urllib.request.urlopen(f"{url}/subjects", timeout=5) as answer:
                    return bool(answer.status == 200)
            except (urllib.error.URLError, OSError):
                return False

        try:
            wait_until(answers, STARTED_S, "Apicurio to answer")
            yield url
        finally:
            process.kill()
