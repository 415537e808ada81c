"""A schema registry: its settings, and what its answers mean.

Confluent's client asks and keeps the answers. It retries nothing: no answer is a RetriableError,
which waits under ``task.timeout.ms``. A process has one client for each set of settings.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from everflow.errors import ConfigError, EverflowError, RetriableError, SchemaError
from everflow.handlers import is_outage
from everflow.serdes.base import SerdeError
from everflow.serdes.wire_format import SchemaId
from everflow.user_program import error_text

EXTRA = "pip install 'everflow[schemas]'"
TIMEOUT_MS = 10_000
_URL = "schema.registry.url"
_PREFIX = "schema.registry."
_MOST_KEPT = 10_000
_NOT_THERE = 404
"""And the first digits of a registry's own code for it (40401, 40403, ...)."""
_INCOMPATIBLE = 409
_PEM = "PEM"
_NAMES: dict[str, str] = {
    "url": "url",
    "basic.auth.user.info": "basic.auth.user.info",
    "basic.auth.credentials.source": "",
    "bearer.auth.credentials.source": "bearer.auth.credentials.source",
    "bearer.auth.token": "bearer.auth.token",
    "bearer.auth.logical.cluster": "bearer.auth.logical.cluster",
    "bearer.auth.identity.pool.id": "bearer.auth.identity.pool.id",
    "bearer.auth.client.id": "bearer.auth.client.id",
    "bearer.auth.client.secret": "bearer.auth.client.secret",
    "bearer.auth.scope": "bearer.auth.scope",
    "bearer.auth.issuer.endpoint.url": "bearer.auth.issuer.endpoint.url",
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.type": "",
    "ssl.keystore.location": "ssl.certificate.location",
    "ssl.keystore.type": "",
    "ssl.key.password": "ssl.key.password",
    "ssl.ca.location": "ssl.ca.location",
    "ssl.certificate.location": "ssl.certificate.location",
    "ssl.key.location": "ssl.key.location",
    "request.timeout.ms": "",
    "proxy": "proxy",
}
"""Settings of Kafka's serdes (and of librdkafka's names for PEM files), with or without the prefix
``schema.registry.``, and the client's names for them; empty: read here."""


class Reference(NamedTuple):
    """What a schema calls by ``name``: a version of a subject."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True)
class Schema:
    """``kind``: ``AVRO``, ``PROTOBUF`` or ``JSON``; ``text``: of Protobuf, the file's descriptor in
    base64. ``resolved``: names and texts of all references, each after those that it needs."""

    kind: str
    text: str
    references: tuple[Reference, ...] = ()
    resolved: tuple[tuple[str, str], ...] = ()

    @property
    def form(self) -> str:
        """The text without what makes no difference to the registry: blanks and the order of
        names."""
        try:
            return json.dumps(json.loads(self.text), sort_keys=True, separators=(",", ":"))
        except ValueError:
            return self.text


class Version(NamedTuple):
    """A schema under a subject; ``guid``: None where the registry has none."""

    id: int
    guid: str | None
    version: int | None
    schema: Schema


class MissingSchema(Exception):
    """The registry answers that it does not have a schema."""


@dataclass(frozen=True, repr=False)
class Registry:
    """The settings of a registry, by Kafka's names; picklable, so workers ask it themselves. From
    any thread."""

    settings: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        return self.url

    @staticmethod
    def of(settings: object) -> Registry:
        """``settings``: the URL, or a mapping with ``schema.registry.url``. ConfigError names what
        is wrong with a setting; no value of one is shown."""
        if isinstance(settings, Registry):
            return settings
        if isinstance(settings, str):
            settings = {_URL: settings}
        if not isinstance(settings, Mapping):
            raise ConfigError(
                f"registry is a URL, or a dict with {_URL!r}; found {type(settings).__name__}"
            )
        found = {}
        for name, value in settings.items():
            short = str(name).removeprefix(_PREFIX)
            if short not in _NAMES:
                near = get_close_matches(short, _NAMES, n=1)
                hint = f"; did you mean {_PREFIX}{near[0]}?" if near else ""
                raise ConfigError(f"registry has no setting {name!r}{hint}")
            found[short] = str(value)
        if not found.get("url"):
            raise ConfigError(f"registry needs {_URL!r}, e.g. 'http://localhost:8081'")
        made = Registry(tuple(sorted(found.items())))
        made.client_settings()
        return made

    @property
    def url(self) -> str:
        """Without a name and password."""
        urls = dict(self.settings)["url"].split(",")
        return ",".join(
            urlsplit(one)._replace(netloc=urlsplit(one).netloc.rpartition("@")[2]).geturl()
            for one in urls
        )

    def client_settings(self) -> dict[str, Any]:
        """For Confluent's client. ConfigError for a combination that it does not have."""
        own = dict(self.settings)
        for store in ("truststore", "keystore"):
            if own.get(f"ssl.{store}.location") and own.get(f"ssl.{store}.type", _PEM) != _PEM:
                raise ConfigError(
                    f"ssl.{store}.type is {own[f'ssl.{store}.type']}: a registry's {store} is a "
                    f"PEM file here (openssl pkcs12 -in {store}.p12 -out {store}.pem)"
                )
        source = own.get("basic.auth.credentials.source", "USER_INFO")
        if source not in ("USER_INFO", "URL"):
            raise ConfigError(f"basic.auth.credentials.source is USER_INFO or URL, not {source}")
        timeout = own.get("request.timeout.ms", str(TIMEOUT_MS))
        if not timeout.isdecimal() or not int(timeout):
            raise ConfigError(f"request.timeout.ms is a number of ms above 0, found {timeout!r}")
        found: dict[str, Any] = {_NAMES[name]: value for name, value in own.items() if _NAMES[name]}
        if found.get("bearer.auth.credentials.source") == "STATIC_TOKEN":
            found.setdefault("bearer.auth.logical.cluster", "")  # Java's client has none, either
        return {
            **found,
            "timeout": int(timeout) / 1000,
            "max.retries": 0,
            "cache.capacity": _MOST_KEPT,
        }

    def connect(self) -> None:
        """Make this process's client; it asks nothing. ConfigError."""
        self._client()

    def schema(self, id_: SchemaId, kind: str) -> Schema:
        """What records with this id were written with. MissingSchema, RetriableError."""
        return _schema(self, id_, kind, os.getpid())

    def any_schema(self, id_: SchemaId) -> Schema:
        """As `schema`, of whichever kind it is."""
        client = self._client()
        with self._answered(f"schema {id_}"):
            ask = client.get_schema if isinstance(id_, int) else client.get_schema_by_guid
            kind = ask(id_).schema_type or "AVRO"
        if _form(kind) is not None:
            client.clear_caches()  # which have the text, whatever form is asked for
        return self.schema(id_, kind)

    def latest(self, subject: str, kind: str | None) -> Version:
        """The latest version, asked anew; ``kind`` None: of whichever it is. MissingSchema,
        RetriableError."""
        client = self._client()
        client.clear_latest_caches()
        if kind is None:
            with self._answered(f"the latest version of {subject}"):
                kind = client.get_latest_version(subject).schema.schema_type or "AVRO"
            client.clear_latest_caches()
        with self._answered(f"the latest version of {subject}"):
            return self._version(client.get_latest_version(subject, fmt=_form(kind)), kind)

    def version(self, subject: str, number: int, kind: str) -> Version:
        client = self._client()
        with self._answered(f"version {number} of {subject}"):
            return self._version(client.get_version(subject, number, fmt=_form(kind)), kind)

    def found(
        self, subject: str, schema: Schema, meaning: Callable[[Schema], object], *, register: bool
    ) -> Version:
        """``schema`` under a subject; registered if it is not there and ``register`` says so.
        MissingSchema, SchemaError (it is not compatible), RetriableError.

        ``meaning``: equal of schemas that say the same; SerdeError of what is none. Apicurio's
        registry compares texts, so a blank makes another schema."""
        try:
            return self._of_text(subject, schema, register=False)
        except MissingSchema:
            alike = self._alike(subject, schema, meaning)
            if alike is not None:
                return alike
            if not register:
                raise
        return self._of_text(subject, schema, register=True)

    def _alike(
        self, subject: str, schema: Schema, meaning: Callable[[Schema], object]
    ) -> Version | None:
        """The newest version of a subject that says the same as ``schema``."""
        client = self._client()
        try:
            with self._answered(f"the versions of {subject}"):
                numbers = sorted(client.get_versions(subject), reverse=True)
        except MissingSchema:
            return None
        wanted = meaning(schema), set(schema.references)
        for number in numbers:
            try:
                found = self.version(subject, number, schema.kind)
                if (meaning(found.schema), set(found.schema.references)) == wanted:
                    return found._replace(schema=schema)
            except (MissingSchema, SerdeError):
                continue  # it was deleted meanwhile, or is of another format
        return None

    def _of_text(self, subject: str, schema: Schema, *, register: bool) -> Version:
        client = self._client()
        from confluent_kafka.schema_registry import Schema as ClientSchema
        from confluent_kafka.schema_registry import SchemaReference

        references = [SchemaReference(*one) for one in schema.references]
        own = ClientSchema(schema.text, schema.kind, references)
        with self._answered(f"the schema's id under {subject}"):
            if register:
                made = client.register_schema_full_response(subject, own)
            else:
                made = client.lookup_schema(subject, own)
        return Version(made.schema_id, made.guid, made.version, schema)

    def _client(self) -> Any:
        return _client(self, os.getpid())

    def _version(self, found: Any, kind: str) -> Version:
        schema = self._whole(found.schema, kind)
        return Version(found.schema_id, found.guid, found.version, schema)

    def _whole(self, found: Any, kind: str) -> Schema:
        if not isinstance(found.schema_str, str):
            raise RetriableError(f"the schema registry at {self.url} answered without a schema")
        if (found.schema_type or "AVRO") != kind:
            raise MissingSchema(f"the schema is one of {found.schema_type}, not of {kind}")
        references = tuple(
            Reference(one.name, one.subject, one.version) for one in found.references or ()
        )
        return self.resolved(Schema(kind, found.schema_str, references))

    def resolved(self, schema: Schema) -> Schema:
        """With the texts of its references."""
        known: dict[str, str] = {}
        for one in schema.references:
            inner = self.version(one.subject, one.version, schema.kind).schema
            known.update(inner.resolved)
            known[one.name] = inner.text
        return Schema(schema.kind, schema.text, schema.references, tuple(known.items()))

    @contextmanager
    def _answered(self, what: str) -> Iterator[None]:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            yield
        except SchemaRegistryError as error:
            said = f"the schema registry at {self.url} answered {error} to {what}"
            if error.http_status_code == _NOT_THERE:
                if (error.error_code or 0) // 100 == _NOT_THERE:
                    raise MissingSchema(said) from error
                # A proxy, or a wrong path: the registry itself has not answered.
                raise RetriableError(said) from error
            if error.http_status_code == _INCOMPATIBLE:
                raise SchemaError(said) from error
            if is_outage(error):
                raise RetriableError(said) from error
            raise SchemaError(said) from error
        except (EverflowError, MissingSchema):
            raise
        except Exception as error:
            # Of its HTTP library (httpx2 or httpx), or what it stumbles over in an answer that is
            # no registry's: a page to log in, say.
            raise self._silent(what, error) from error

    def _silent(self, what: str, error: BaseException) -> RetriableError:
        return RetriableError(
            f"the schema registry at {self.url} does not answer, or not as one ({what}): "
            f"{error_text(error)}"
        )


def _form(kind: str) -> str | None:
    return "serialized" if kind == "PROTOBUF" else None


@lru_cache(maxsize=64)
def _client(registry: Registry, process: int) -> Any:
    """``process``: connections do not outlive a fork."""
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise ConfigError(f"a schema registry needs {EXTRA}: {error}") from error
    try:
        return SchemaRegistryClient(registry.client_settings())
    except (ValueError, TypeError, OSError) as error:
        raise ConfigError(f"the settings of the schema registry: {error}") from error


@lru_cache(maxsize=_MOST_KEPT)
def _schema(registry: Registry, id_: SchemaId, kind: str, process: int) -> Schema:
    client = registry._client()
    with registry._answered(f"schema {id_}"):
        if isinstance(id_, int):
            found = client.get_schema(id_, fmt=_form(kind))
        else:
            found = client.get_schema_by_guid(id_, fmt=_form(kind))
    return registry._whole(found, kind)
