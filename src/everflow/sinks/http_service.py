"""Rows to an HTTP service: a POST per task and batch, of a JSON object a line. At least once: the
header ``Idempotency-Key`` and the offsets say what the service may have already."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field

from everflow.errors import RetriableError, SinkError
from everflow.handlers import is_outage
from everflow.sinks.batch import SinkBatch


@dataclass(eq=False, kw_only=True)
class HttpSink:
    """A `Sink`. See `KStream.write_stream`."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 30.0

    def write(self, batch: SinkBatch) -> None:
        """See `Sink`."""
        lines = (json.dumps(row, default=str) for row in batch.rows.to_pylist())
        offsets = {str(tp): list(one) for tp, one in sorted(batch.offsets.items())}
        request = urllib.request.Request(
            self.url,
            "\n".join(lines).encode() + b"\n",
            {
                "Content-Type": "application/x-ndjson",
                "Idempotency-Key": batch.id,
                "Everflow-Offsets": json.dumps(offsets),
                **self.headers,
            },
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as answer:
                answer.read()
        except urllib.error.HTTPError as error:
            said = error.read(300).decode(errors="replace")
            text = f"{self.url} answers {error.code} {error.reason}: {said}"
            if is_outage(error):
                raise RetriableError(text) from error
            raise SinkError(f"Sink {batch.sink}: {text}") from error
        except OSError as error:
            raise RetriableError(f"{self.url} does not answer: {error}") from error
