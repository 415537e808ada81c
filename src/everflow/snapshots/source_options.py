"""Options of ``everflow-state``: which store, where its bytes' types come from, what is looked at.

Pure. What is no option of the source's own is a setting, as of `KafkaStreams`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everflow import serdes
from everflow.errors import ConfigError, StatePointError
from everflow.serdes.base import Serde, SerdeError
from everflow.snapshots.entry_columns import EntryColumns
from everflow.snapshots.logged_stores import LoggedStore
from everflow.snapshots.points import Point
from everflow.state.store import StoreSpec

KEY, VALUE = "key.serde", "value.serde"
_WITH_SERDES = ("kind", "changelog.topic", "retention.ms", "window.size.ms")
OWN = ("store", "topology", "at", "diff.from", "diff.to", "folder", KEY, VALUE, *_WITH_SERDES)
_KINDS = ("key_value", "window", "session", "versioned")
_NAMED = {
    "string": serdes.string,
    "boolean": serdes.boolean,
    "short": serdes.short,
    "int": serdes.int_,
    "long": serdes.long,
    "float": serdes.float_,
    "double": serdes.double,
    "bytes": serdes.bytes_,
}
_WITH_FIELDS = {"json": serdes.json, "packed": serdes.packed}


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What was given. ``topology``: MODULE:NAME; ``known``: a store that needs none. Picklable."""

    store: str
    settings: Mapping[str, Any]
    topology: str | None = None
    known: LoggedStore | None = None
    at: str = "end"
    diff: tuple[str, str] | None = None
    folder: Path | None = None

    @staticmethod
    def of(
        options: Mapping[str, str], settings: Mapping[str, Any], *, registered: bool
    ) -> SourceOptions:
        """``settings``: those that the source was registered with, and ``registered``: with a
        program. ConfigError names the option and what to do."""
        own = {name: options[name] for name in OWN if name in options}
        given = {**settings, **{name: one for name, one in options.items() if name not in own}}
        _refuse_misspelt(given)
        store = _needed(own, "store", "as in the topology, e.g. .option('store', 'counts')")
        for name, what in (
            ("application.id", "it names the changelog"),
            ("bootstrap.servers", "host:port of a broker"),
        ):
            if name.replace(".", "_") not in given:
                _needed(given, name, what)
        _require_one_program(own, registered)
        known = _store_of_serdes(store, own, str(given.get("application.id", "")))
        diff = None
        if "diff.from" in own or "diff.to" in own:
            first = _needed(own, "diff.from", "the first of the two points of a difference")
            diff = first, own.get("diff.to", "end")
            if "at" in own:
                raise ConfigError(
                    "The options diff.from and diff.to have their two points: leave the option at "
                    "out."
                )
        _require_points(own)
        return SourceOptions(
            store=store,
            settings=given,
            topology=own.get("topology"),
            known=known,
            at=own.get("at", "end"),
            diff=diff,
            folder=Path(own["folder"]) if "folder" in own else None,
        )


def _require_points(own: Mapping[str, str]) -> None:
    for option in ("at", "diff.from", "diff.to"):
        try:
            Point.of(own.get(option))
        except StatePointError as error:
            raise StatePointError(f"The option {option}: {error}") from None


def _require_one_program(own: Mapping[str, str], registered: bool) -> None:
    """Exactly one thing says what the bytes are."""
    with_serdes = [name for name in (KEY, VALUE, *_WITH_SERDES) if name in own]
    if registered and ("topology" in own or with_serdes):
        raise ConfigError(
            f"The source was registered with a program: leave the options "
            f"{', '.join([*with_serdes, *(['topology'] if 'topology' in own else [])])} out, or "
            f"register EverflowStateSource itself."
        )
    if "topology" in own and with_serdes:
        raise ConfigError(
            f"The option topology has the store's serdes and kind: leave {', '.join(with_serdes)} "
            f"out."
        )
    if registered or "topology" in own:
        return
    missing = [name for name in (KEY, VALUE) if name not in own]
    if missing:
        raise ConfigError(
            f"Nothing says what the store's bytes are. Give the option topology "
            f"(MODULE:NAME, as for everflow run), or {KEY} and {VALUE} ({' and '.join(missing)} "
            f"missing), or register EverflowStateSource.of(builder.build(), ...)."
        )


def _store_of_serdes(name: str, own: Mapping[str, str], application_id: str) -> LoggedStore | None:
    """A store that options describe; None where there are none."""
    if KEY not in own:
        return None
    kind = own.get("kind", "key_value")
    if kind not in _KINDS:
        raise ConfigError(f"The option kind is {kind!r}; a store is {', '.join(_KINDS)}.")
    retention_ms = _milliseconds(own, "retention.ms")
    if kind != "key_value" and retention_ms is None:
        raise ConfigError(
            f"A {kind} store forgets what is older than it keeps: the option retention.ms is "
            f"missing. Give what the store was made with."
        )
    value = _serde(own, VALUE)
    spec = StoreSpec(
        name=name,
        kind=kind,
        key_serde=_serde(own, KEY),
        value_serde=value,
        retention_ms=retention_ms,
        window_size_ms=_milliseconds(own, "window.size.ms"),
        source_topic=own.get("changelog.topic"),
    )
    columns = EntryColumns(spec, value, by_options=True)
    topic, left_out = spec.changelog_topic(application_id), spec.left_out_topic(application_id)
    return LoggedStore(columns, topic, left_out)


def _serde(own: Mapping[str, str], option: str) -> Serde:
    """``string``, or ``json carrier string, delay double``."""
    name, _, fields = own[option].strip().partition(" ")
    try:
        if name in _NAMED and not fields:
            return _NAMED[name]()
        if name in _WITH_FIELDS and fields:
            return _WITH_FIELDS[name](fields)
    except SerdeError as error:
        raise ConfigError(f"The option {option} cannot be read: {error}") from error
    raise ConfigError(
        f"The option {option} is {own[option]!r}; write {', '.join(_NAMED)}, or json or packed and "
        f"the fields: json carrier string, delay double."
    )


def _milliseconds(own: Mapping[str, str], option: str) -> int | None:
    text = own.get(option)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < 1:
        raise ConfigError(f"The option {option} is {text!r}; it is a number of ms above 0.")
    return int(text)


def _needed(given: Mapping[str, Any], option: str, what: str) -> str:
    found = str(given.get(option) or "")
    if not found:
        raise ConfigError(f"The option {option} is missing: {what}.")
    return found


def _refuse_misspelt(settings: Mapping[str, Any]) -> None:
    """What is nearly an option of the source's own is no setting, either."""
    for name in settings:
        near = difflib.get_close_matches(name, OWN, n=1, cutoff=0.8)
        if near:
            raise ConfigError(f"There is no option {name}; did you mean {near[0]}?")
    if "path" in settings:
        raise ConfigError("load() takes no path: name the store, .option('store', 'counts').load()")
