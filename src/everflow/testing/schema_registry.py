"""A schema registry in the process, for tests: Confluent's requests, schemas in memory."""

from __future__ import annotations

import base64
import json
import re
import ssl
import threading
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import unquote, urlsplit

_SUBJECT_VERSION = re.compile(r"/subjects/([^/]+)/versions/([^/]+)")
_SUBJECT_VERSIONS = re.compile(r"/subjects/([^/]+)/versions")
_SUBJECT = re.compile(r"/subjects/([^/]+)")
_ID = re.compile(r"/schemas/ids/(\d+)")
_GUID = re.compile(r"/schemas/guids/([0-9a-f-]+)")

Answer = tuple[int, Any]


class SchemaRegistry:
    """A schema registry in the process; serves at ``url`` within ``with``. From any thread.

    As Apicurio's registry, it finds a schema by its text: a blank makes another one.

    ``user``: ``name:password``, or a token, that requests must show. ``compatible``: a function of
    the text of the last schema of a subject and of one that is to be registered, which returns why
    it may not follow, or "". ``tls``: of an HTTPS server, which may ask for certificates.

    Attributes:
        url: for ``schema.registry.url``.
        fails: the HTTP status of all answers; None: as a registry answers.
        silent: an event; while it is set no request is answered.
        asked: the requests so far, ``GET /schemas/ids/1``.
    """

    def __init__(
        self,
        user: str | None = None,
        compatible: Callable[[str, str], str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.user, self.compatible = user, compatible
        self.fails: int | None = None
        self.silent = threading.Event()
        self.asked: list[str] = []
        self._lock = threading.Lock()
        self._schemas: list[dict[str, Any]] = []
        self._subjects: dict[str, list[int]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        vars(self._server)["registry"] = self
        scheme = "http" if tls is None else "https"
        if tls is not None:
            own = self._server.socket
            self._server.socket = tls.wrap_socket(own, True, do_handshake_on_connect=False)
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> SchemaRegistry:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.silent.clear()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def register(self, subject: str, schema: object, kind: str = "AVRO", **more: Any) -> int:
        """Registers a schema under ``subject``, and returns its id; ``compatible`` is not asked.
        ``schema``: its text, or the values of its JSON. ``kind``: ``AVRO``, ``PROTOBUF`` (the text
        is the file's descriptor in base64) or ``JSON``. ``more``: ``references``."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        with self._lock:
            return self._added(subject, {"schema": text, "schemaType": kind, **more})

    def guid(self, id_: int) -> str:
        """The GUID of a schema, as in headers of records."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"schema {id_}"))

    def forget(self, id_: int) -> None:
        """Deletes a schema for good: its id is answered with 404."""
        with self._lock:
            self._schemas[id_ - 1] = {}
            for ids in self._subjects.values():
                ids[:] = [one for one in ids if one != id_]

    def _answered(self, method: str, path: str, body: dict[str, Any], user: str | None) -> Answer:
        self.asked.append(f"{method} {path}")
        while self.silent.is_set() and self._thread.is_alive():
            threading.Event().wait(0.05)
        if self.fails is not None:
            return self.fails, {"error_code": self.fails * 100, "message": "it was told to fail"}
        if self.user is not None and user != self.user:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        with self._lock:
            return self._answer(method, urlsplit(path).path, body)

    def _answer(self, method: str, path: str, body: dict[str, Any]) -> Answer:
        if (match := _ID.fullmatch(path)) is not None:
            return self._by_id(int(match.group(1)))
        if (match := _GUID.fullmatch(path)) is not None:
            ids = {self.guid(at + 1): at + 1 for at in range(len(self._schemas))}
            return self._by_id(ids.get(match.group(1), 0))
        if (match := _SUBJECT_VERSION.fullmatch(path)) is not None:
            return self._by_version(unquote(match.group(1)), match.group(2))
        if (match := _SUBJECT_VERSIONS.fullmatch(path)) is not None:
            subject = unquote(match.group(1))
            return self._registered(subject, body) if method == "POST" else self._versions(subject)
        if method == "POST" and (match := _SUBJECT.fullmatch(path)) is not None:
            return self._looked_up(unquote(match.group(1)), body)
        return 404, {"error_code": 404, "message": f"HTTP 404 Not Found: {path}"}

    def _by_id(self, id_: int) -> Answer:
        if not 0 < id_ <= len(self._schemas) or not self._schemas[id_ - 1]:
            return 404, {"error_code": 40403, "message": f"Schema {id_} not found"}
        return 200, {**self._schemas[id_ - 1], "guid": self.guid(id_)}

    def _by_version(self, subject: str, version: str) -> Answer:
        ids = self._subjects.get(subject)
        if not ids:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        number = len(ids) if version == "latest" else int(version)
        if not 0 < number <= len(ids):
            return 404, {"error_code": 40402, "message": f"Version {version} not found."}
        return 200, self._shown(subject, number)

    def _shown(self, subject: str, number: int) -> dict[str, Any]:
        id_ = self._subjects[subject][number - 1]
        place = {"subject": subject, "version": number, "id": id_, "guid": self.guid(id_)}
        return {**self._schemas[id_ - 1], **place}

    def _versions(self, subject: str) -> Answer:
        if not self._subjects.get(subject):
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        return 200, list(range(1, len(self._subjects[subject]) + 1))

    def _looked_up(self, subject: str, body: dict[str, Any]) -> Answer:
        if not self._subjects.get(subject):
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        for number, id_ in enumerate(self._subjects[subject], 1):
            if _same(self._schemas[id_ - 1], body):
                return 200, self._shown(subject, number)
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _registered(self, subject: str, body: dict[str, Any]) -> Answer:
        known = self._subjects.get(subject) or []
        if known and self.compatible is not None and self._looked_up(subject, body)[0] != 200:
            why = self.compatible(self._schemas[known[-1] - 1]["schema"], body["schema"])
            if why:
                return 409, {"error_code": 409, "message": f"Schema is incompatible: {why}"}
        return 200, {"id": self._added(subject, body)}

    def _added(self, subject: str, body: dict[str, Any]) -> int:
        own = {"schema": body["schema"], "schemaType": body.get("schemaType") or "AVRO"}
        own["references"] = body.get("references") or []
        same = (at for at, one in enumerate(self._schemas, 1) if one and _same(one, own))
        id_ = next(same, len(self._schemas) + 1)
        if id_ > len(self._schemas):
            self._schemas.append(own)
        ids = self._subjects.setdefault(subject, [])
        if id_ not in ids:
            ids.append(id_)
        return id_


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    def form(schema: dict[str, Any]) -> tuple[Any, ...]:
        kind, text = schema.get("schemaType") or "AVRO", schema["schema"]
        references = json.dumps(schema.get("references") or [], sort_keys=True)
        return kind, text, references

    return bool(one) and form(one) == form(other)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def _serve(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        scheme, _, told = (self.headers.get("Authorization") or "").partition(" ")
        user = base64.b64decode(told).decode() if scheme == "Basic" else told or None
        registry = cast(Any, self.server).registry
        status, answer = registry._answered(method, self.path, json.loads(body or b"{}"), user)
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing: a test's output is its own."""
