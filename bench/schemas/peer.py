"""Java's side: a process that does with values what Confluent's serdes do (`SchemaPeer.java`)."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.java_program import java_command
from everflow.jvm import resolve_jars

_SOURCES = Path(__file__).parent
_MAIN = "SchemaPeer"
HEAD = b"\0\0\0\0\1"
"""Before each value; of Protobuf one more zero: the first message of its schema."""


class PeerError(RuntimeError):
    """Java refuses a schema or a value; carries what it said."""


@dataclass(frozen=True)
class JavaPeer:
    """Answers one question at a time. ``writer``, ``wanted``: schemas of Avro; of Protobuf a
    message's name, and the descriptors of files in base64, separated by blanks."""

    process: subprocess.Popen[str]

    @staticmethod
    @contextmanager
    def started(classes: Path) -> Iterator[JavaPeer]:
        """``classes``: a folder for what is compiled."""
        command = java_command(resolve_jars("schemas"), classes, _SOURCES, _MAIN)
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield JavaPeer(process)
            finally:
                assert process.stdin is not None
                process.stdin.close()

    def again(
        self, kind: str, writer: str, wanted: str, values: Sequence[bytes | None]
    ) -> list[bytes]:
        """``values`` with their heads, read as ``wanted`` and written again. PeerError."""
        answer = self._ask("again", kind, writer, wanted, values)
        return [base64.standard_b64decode(one) for one in answer.split(",")]

    def rates(
        self, kind: str, writer: str, wanted: str, values: Sequence[bytes | None]
    ) -> tuple[float, float]:
        """Values/s that it reads, and writes, of its thread's processor time. PeerError."""
        decoded, encoded, _ = self._ask("rate", kind, writer, wanted, values).split(",")
        return float(decoded), float(encoded)

    def _ask(
        self, what: str, kind: str, writer: str, wanted: str, values: Iterable[bytes | None]
    ) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        texts = [base64.standard_b64encode(one.encode()).decode() for one in (writer, wanted)]
        listed = ",".join(base64.standard_b64encode(one or b"").decode() for one in values)
        self.process.stdin.write("\t".join((what, kind, *texts, listed)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().rstrip("\n")
        if answer.startswith("!") or not answer:
            raise PeerError(answer or f"Java ended with {self.process.wait(30)}")
        return answer
