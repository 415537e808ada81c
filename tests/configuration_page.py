"""Makes docs/guide/configuration.md of the code. Run it after a change of a key or of its text:

.venv/bin/python tests/configuration_page.py
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from everflow.config import (
    FIXED_BY_EVERFLOW,
    INT32,
    INT64,
    LONGEST_MS,
    WITHOUT_EFFECT,
    Between,
    OneOf,
    StreamsConfig,
    dotted_name,
)
from everflow.config_texts import GROUPS, OURS, PREFIXES, Group, KeyText

PAGE = Path(__file__).resolve().parents[1] / "docs" / "guide" / "configuration.md"
UNBOUNDED = (INT32, INT64, LONGEST_MS, 2**62)
"""Bounds that are only those of a number's width."""
FIELDS = {field.name: field for field in dataclasses.fields(StreamsConfig) if field.metadata.get("key", True)}
MADE_UP = {"application_id": "must be set", "bootstrap_servers": "must be set", "num_stream_threads": "(cores)", "state_dir": "(see right)"}
"""Defaults that are no constants."""

HEAD = """# Configuration

Every setting, made from the code by `tests/configuration_page.py`. Only `application.id` and `bootstrap.servers` have no default.
Names and meanings are Kafka Streams' where it has the key; the last column says what differs there.

## How settings are given

A key is written dotted, as in Kafka, or with underscores, as Python names keywords. Values may be text: it is read as the key's type.

```python
from everflow import StreamsConfig

config = StreamsConfig(application_id="delays", bootstrap_servers="localhost:9092", task_timeout_ms=60_000)
same = StreamsConfig(**{"application.id": "delays", "bootstrap.servers": "localhost:9092", "task.timeout.ms": "60000"})
assert config == same
```

| where | how |
| --- | --- |
| Python | `KafkaStreams(topology, application_id=..., bootstrap_servers=..., task_timeout_ms=60_000)`, or `KafkaStreams(topology, config)` |
| the command line | `everflow run MODULE:NAME --set task.timeout.ms=60000`, as often as needed; `--application-id`, `--bootstrap-servers`, `--guarantee`, `--threads` and `--state-dir` are short for five of them, and win over `--set` |
| the environment | `EVERFLOW_BOOTSTRAP_SERVERS`, for `everflow run` without `--bootstrap-servers`; `XDG_STATE_HOME` is where `state.dir` is by default; `JAVA_HOME` is the Java that Spark runs on |

There is no file of settings: read one with what you like, and pass the mapping, `StreamsConfig(**mapping)`. A configuration does not change while
an instance runs. A key that does not exist, is given twice, or has a wrong value is a `ConfigError` that names it (and the nearest right name):

```python
from everflow import ConfigError

try:
    StreamsConfig(application_id="delays", bootstrap_servers="localhost:9092", task_time_out_ms=60_000)
except ConfigError as error:
    print(error)
```

<!-- output -->
```text
Unknown configuration key 'task_time_out_ms': did you mean task.timeout.ms (task_timeout_ms=...)? Client settings take a prefix: consumer., producer., admin., topic.
```

Times are in ms, sizes in bytes. **No effect yet** marks keys that are accepted, so that a program can come over from Kafka Streams; who sets one is told at
the start what holds instead.
"""

CLIENTS = """
## Settings of Kafka's clients

A key with one of these beginnings is passed on as it is, and checked before anything runs. With keywords, `producer_linger_ms=5`.

| beginning | goes to |
| --- | --- |
{rows}

everflow's guarantees stand on some client settings, so these are refused with any prefix: {fixed}. So are, behind `consumer.` and
`main.consumer.`, the keys of the group's member, which are everflow's own: write `session.timeout.ms`, `heartbeat.interval.ms`, `max.poll.interval.ms`,
`group.instance.id` and `client.rack` without a prefix.
"""


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


def meaning(name: str, text: KeyText) -> str:
    """What a key does, or what holds instead."""
    if name not in WITHOUT_EFFECT:
        return text.meaning
    return f"{text.meaning}. **No effect yet:** {WITHOUT_EFFECT[name]}"


def table(group: Group) -> str:
    """One group's heading and table."""
    lines = [f"\n## {group.title}\n", "| key | default | values | meaning | Kafka Streams |", "| --- | --- | --- | --- | --- |"]
    for name, text in group.keys.items():
        own = " *(ours)*" if text.kafka_streams.startswith(OURS) else ""
        cells = (f"`{dotted_name(name)}`{own}", default(name), values(name), meaning(name, text), text.kafka_streams)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The whole page."""
    rows = "\n".join(f"| `{prefix}` | {to} |" for prefix, to in PREFIXES.items())
    fixed = ", ".join(f"`{key}`" for key in sorted(FIXED_BY_EVERFLOW))
    return HEAD + "".join(table(group) for group in GROUPS) + CLIENTS.format(rows=rows, fixed=fixed)


if __name__ == "__main__":
    PAGE.write_text(page())
