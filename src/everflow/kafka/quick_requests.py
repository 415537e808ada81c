"""kafka-python's requests with headers of our own: a head of one `struct` before the body.

kafka-python 3.0 builds an object for each header, looks the version of each request up, and asks
every record in a request for tagged fields. That is two thirds of what a small request costs. The
bodies are encoded and decoded by the functions that it compiles.

With `broker_link` and `quick_loop`, the one place that reaches into kafka-python for this.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from kafka.protocol.api_header import RequestHeader, ResponseClassRegistry
from kafka.protocol.schemas.fields.codecs.encode_buffer import EncodeBufferPool

_HEAD = struct.Struct(">ihhih")
"""The size of the frame, api key, version, correlation id, the length of the client's name."""
_SIZE_BYTES = 4
_CORRELATION = struct.Struct(">i")


class RequestKind(NamedTuple):
    """What all requests of one class have in common that go to a broker in one version."""

    key: int
    version: int
    flexible: bool
    encode: Callable[[Any, Any], None]
    """Of a request without tagged fields of its own."""
    tagged: Callable[[Any, Any], None]
    """Asks the request and every record in it for tagged fields."""
    answer: Any
    """The class of the answer, in this version."""
    plain_head: bool
    """The answer's header is a correlation id, without tagged fields."""
    decode: Callable[[memoryview, int], tuple[Any, int]]

    @staticmethod
    def of(request: type, version: int) -> RequestKind:
        kind: Any = request
        flexible = kind.flexible_version_q(version)
        header = RequestHeader(request_api_key=kind.API_KEY, request_api_version=version)
        answer: Any = ResponseClassRegistry.get_response_class(header)
        made = answer[None]
        answers_flexible = made.flexible_version_q(version)
        return RequestKind(
            kind.API_KEY,
            version,
            flexible,
            kind._struct.compiled_encode_into(
                version,
                compact=flexible,
                tagged=None if flexible and not _tagged_inside(kind._struct, version) else flexible,
            ),
            kind._struct.compiled_encode_into(version, compact=flexible, tagged=flexible),
            answer,
            # The answer to ApiVersions has a header of its own.
            not answers_flexible or "parse_header" in vars(made),
            made._struct.compiled_decode_from(
                version, compact=answers_flexible, tagged=answers_flexible, data_class=made
            ),
        )


def _tagged_inside(struct: Any, version: int) -> bool:
    """Whether records in a message may have tagged fields in this version."""
    inside = [
        field
        for field in struct.fields.values()
        if field.for_version_q(version) and (field.is_struct() or field.is_struct_array())
    ]
    return any(
        field.tagged_fields(version)._names or _tagged_inside(field, version) for field in inside
    )


class QuickRequest:
    """A request as a connection of kafka-python sends it, and the reader of its answer's header."""

    __slots__ = ("_client", "_kind", "_request", "correlation_id")

    def __init__(self, request: Any, kind: RequestKind) -> None:
        self._request, self._kind = request, kind

    @property
    def API_VERSION(self) -> int:
        return self._kind.version

    def expect_response(self) -> bool:
        return bool(self._request.expect_response())

    def with_header(self, correlation_id: int, client_id: str) -> None:
        self.correlation_id, self._client = correlation_id, client_id.encode()

    @property
    def header(self) -> QuickRequest:
        return self

    def encode(self, framed: bool, header: bool) -> bytearray:
        kind, client, request = self._kind, self._client, self._request
        out = EncodeBufferPool._get()
        head = _HEAD.size + len(client)
        out.buf[_HEAD.size : head] = client
        if kind.flexible:
            out.buf[head] = 0
            head += 1
        out.pos = head
        (kind.encode if request.tags is None else kind.tagged)(request, out)
        size = out.pos - _SIZE_BYTES
        _HEAD.pack_into(out.buf, 0, size, kind.key, kind.version, self.correlation_id, len(client))
        found: bytearray = out.result()
        return found

    def __repr__(self) -> str:
        return repr(self._request)

    # --- what kafka-python's parser asks of a header and of the class of an answer ----------------

    @property
    def api_key(self) -> int:
        return self._kind.key

    @property
    def api_version(self) -> int:
        return self._kind.version

    def get_response_class(self) -> QuickRequest:
        return self

    def parse_header(self, buffer: Any) -> Any:
        kind = self._kind
        if kind.plain_head or buffer[_CORRELATION.size] == 0:
            buffer.seek(_CORRELATION.size + (not kind.plain_head))
            (found,) = _CORRELATION.unpack_from(buffer)
            return self if found == self.correlation_id else _Other(found)
        return kind.answer.parse_header(buffer)

    def decode(self, buffer: Any) -> Any:
        """The answer; ``buffer`` stands behind its header. It is not written to any more."""
        return self._kind.decode(memoryview(buffer), buffer.tell())[0]


class _Other(NamedTuple):
    """The header of an answer to another request."""

    correlation_id: int
