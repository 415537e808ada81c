"""The tables of docs/guide/configuration.md, made of the code; `made_pages` puts them in."""

import dataclasses
from pathlib import Path
from typing import Any

import yaml

from everflow.config import FIXED_BY_EVERFLOW, WITHOUT_EFFECT, StreamsConfig, dotted_name
from everflow.setting_checks import INT32, INT64, LONGEST_MS, Between, OneOf

TEXTS = yaml.safe_load(Path(__file__).with_name("settings.yaml").read_text())
"""By group, then by key: the meaning here, and what differs in Kafka Streams."""
PREFIXES: dict[str, str] = TEXTS.pop("prefixes")
OURS = "no such key"
UNBOUNDED = (INT32, INT64, LONGEST_MS, 2**62)
"""Bounds that are only those of a number's width."""
FIELDS = {
    field.name: field
    for field in dataclasses.fields(StreamsConfig)
    if field.metadata.get("key", True)
}
MADE_UP = {
    "application_id": "must be set",
    "bootstrap_servers": "must be set",
    "num_stream_threads": "(cores)",
    "max_memory_bytes": "(see right)",
    "state_dir": "(see right)",
}
"""Defaults that are no constants."""


def values(name: str) -> str:
    """What a key takes."""
    field = FIELDS[name]
    check = field.metadata["check"]
    if isinstance(check, OneOf):
        return ", ".join(f"`{choice}`" for choice in check.choices)
    if isinstance(check, Between):
        least = f"{check.minimum:,}"
        return f"{least} or more" if check.maximum in UNBOUNDED else f"{least} to {check.maximum:,}"
    base = str(field.type).partition(" ")[0]
    return {"bool": "`true`, `false`", "int": "a whole number", "str": "text"}[base]


def default(name: str) -> str:
    """A key's default, as one would write it."""
    value: Any = FIELDS[name].default
    if name in MADE_UP:
        return MADE_UP[name]
    if value is None or value == "":
        return "(none)"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"{value:,}" if isinstance(value, int) else f"`{value}`"


def meaning(name: str, text: str) -> str:
    """What a key does, or what holds instead."""
    if name not in WITHOUT_EFFECT:
        return text
    return f"{text}. **No effect yet:** {WITHOUT_EFFECT[name]}"


def table(title: str, texts: dict[str, list[str]]) -> str:
    """One group's heading and table."""
    lines = [
        f"\n## {title}\n",
        "| key | default | values | meaning | Kafka Streams |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, (text, *differs) in texts.items():
        elsewhere = differs[0] if differs else "the same"
        own = " *(ours)*" if elsewhere.startswith(OURS) else ""
        cells = (
            f"`{dotted_name(name)}`{own}",
            default(name),
            values(name),
            meaning(name, text),
            elsewhere,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def keys() -> str:
    """The tables of all keys."""
    return "".join(table(title, texts) for title, texts in TEXTS.items())


def prefixes() -> str:
    """The table of the clients' settings, and what cannot be set."""
    rows = "".join(f"| `{prefix}` | {to} |\n" for prefix, to in PREFIXES.items())
    fixed = ", ".join(f"`{key}`" for key in sorted(FIXED_BY_EVERFLOW))
    text = (
        f"everflow's guarantees stand on some client settings, so these are refused with any "
        f"prefix: {fixed}."
    )
    return f"| beginning | goes to |\n| --- | --- |\n{rows}\n{text}\n"
