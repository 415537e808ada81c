"""Makes docs/guide/reference.md of the docstrings of all public names. Run it after a change of
one:

.venv/bin/python tests/reference_page.py
"""

import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import everflow
import everflow.assignment
import everflow.client
import everflow.metrics
import everflow.testing
from everflow.foreign_names import OWN

PAGE = Path(__file__).resolve().parents[1] / "docs" / "guide" / "reference.md"

WITHOUT_DOCSTRING = {
    "StateListener": (
        "A function `(new, old)` of two `ClientState`, for `KafkaStreams.set_state_listener`."
    )
}


@dataclass(frozen=True)
class Section:
    """Names that belong together, and the page (with anchor) that explains them. A name is
    ``Class``, ``module.function`` or one of `PLACES`."""

    title: str
    page: str
    names: str


SECTIONS = (
    Section(
        "Streams and tables",
        "operators.md",
        "StreamsBuilder KStream BranchedKStream KTable GlobalKTable Topology",
    ),
    Section("Groups and aggregations", "aggregations.md", "KGroupedStream Materialized"),
    Section("Built-in aggregates", "aggregations.md#aggregate-with-built-ins", "agg"),
    Section(
        "Windows",
        "time.md",
        "TimeWindows SlidingWindows CountWindows SessionWindows TimeWindowedKStream "
        "SessionWindowedKStream "
        "Windowed",
    ),
    Section(
        "Times of records",
        "time.md#where-the-time-comes-from",
        "TimestampExtractor FailOnInvalidTimestamp LogAndSkipOnInvalidTimestamp "
        "UsePartitionTimeOnInvalidTimestamp WallclockTimestampExtractor RecordContext",
    ),
    Section("Joins", "joins.md", "JoinWindows"),
    Section(
        "Grouped tables, final results, cogroups",
        "tables.md",
        "KGroupedTable Suppressed BufferConfig EmitStrategy CogroupedKStream "
        "TimeWindowedCogroupedKStream SessionWindowedCogroupedKStream",
    ),
    Section(
        "Processors",
        "processors.md",
        "Processor BatchProcessor ValueTransformer ProcessorContext Record RecordMetadata "
        "PunctuationType punctuate Stores KeyValueStore VersionedStore WindowStore SessionStore",
    ),
    Section("Sinks", "sinks.md", "SinkBatch"),
    Section("Serdes", "serdes.md", "serdes"),
    Section(
        "Running",
        "../SCALING.md",
        "KafkaStreams ClientState StateListener StreamThreadExceptionResponse",
    ),
    Section("Settings", "configuration.md", "StreamsConfig"),
    Section(
        "Records that fail",
        "bad-records.md",
        "ExceptionHandler ErrorHandlerContext Response RetryOutages",
    ),
    Section("Spark", "functions.md", "session"),
    Section(
        "Tests",
        "testing.md",
        "TopologyTestDriver InputTopic OutputTopic TestRecord KeyValueView VersionedView "
        "WindowView SessionView ValueAndTimestamp",
    ),
    Section(
        "Tests with a broker",
        "testing.md#what-it-does-not-show",
        "BrokerSecurity EmbeddedBroker EmbeddedCluster KafkaProxy WireFault SchemaRegistry "
        "wait_until",
    ),
    Section(
        "Queries",
        "../QUERIES.md",
        "ReadOnlyKeyValueStore ReadOnlyVersionedStore VersionedRecord ReadOnlyWindowStore "
        "ReadOnlySessionStore",
    ),
    Section(
        "Stores as DataFrames",
        "../QUERIES.md#a-store-as-a-dataframe",
        "read_state diff_state EverflowStateSource",
    ),
    Section(
        "Who has what", "../QUERIES.md#who-has-what", "KeyQueryMetadata StreamsMetadata LagInfo"
    ),
    Section(
        "The query service's client",
        "../QUERIES.md#the-query-service",
        "QueryClient StoreInfo KeyOwner",
    ),
    Section(
        "Tasks and listeners",
        "../SCALING.md#listeners",
        "TaskId TaskRole TaskState TaskStatus TopicPartition RestoreListener "
        "RestoreProgress StandbyUpdateListener SuspendReason",
    ),
    Section(
        "An assignor of your own",
        "../SCALING.md#an-assignor-of-your-own",
        "TaskAssignor ApplicationState KafkaStreamsState "
        "TaskAssignment KafkaStreamsAssignment AssignmentError identity_assignment "
        "default_standby_assignment "
        "optimize_rack_aware_active_tasks optimize_rack_aware_standby_tasks",
    ),
    Section("Metrics", "../SCALING.md", "metrics"),
    Section("Errors", "errors.md", "errors"),
)
PLACES = {
    **dict.fromkeys(everflow.assignment.__all__, "everflow.assignment"),
    **dict.fromkeys(everflow.client.__all__, "everflow.client"),
    **dict.fromkeys(everflow.testing.__all__, "everflow.testing"),
    **dict.fromkeys((*everflow.__all__, "metrics"), "everflow"),
}
"""Name -> the module it is imported from."""
RETURNED = frozenset(
    {
        "KStream",
        "KTable",
        "GlobalKTable",
        "BranchedKStream",
        "Topology",
        "KGroupedStream",
        "KGroupedTable",
        "TimeWindowedKStream",
        "SessionWindowedKStream",
        "ReadOnlyKeyValueStore",
        "ReadOnlyVersionedStore",
        "ReadOnlyWindowStore",
        "ReadOnlySessionStore",
        "InputTopic",
        "OutputTopic",
        "KeyValueView",
        "VersionedView",
        "WindowView",
        "SessionView",
        "WireFault",
    }
)
"""Classes that programs get from calls and never make: how they are made is not on the page."""
_NOT_FOR_READERS = re.compile(r" \((?:D\d+|invariant I\d+|reference [\d.]+)\)")


def found(name: str) -> Any:
    """What a name of `SECTIONS` is."""
    return getattr(importlib.import_module(PLACES[name]), name)


def members(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """Public methods and properties of a class, or names of a module; without `OWN`."""
    if inspect.ismodule(thing):
        listed = getattr(thing, "__all__", None) or [
            member
            for member, value in vars(thing).items()
            if getattr(value, "__module__", None) == thing.__name__
        ]
    elif isinstance(thing, type) and not issubclass(thing, enum.Enum | Exception | tuple):
        listed = [
            member
            for member in dir(thing)
            if _is_member(inspect.getattr_static(thing, member)) and _is_own(thing, member)
        ]
    else:
        listed = []
    for member in listed:
        if not member.startswith("_") and f"{name}.{member}" not in OWN:
            yield member, getattr(thing, member)


def _is_member(static: Any) -> bool:
    return inspect.isfunction(static) or isinstance(static, property | staticmethod | classmethod)


def _is_own(thing: type, member: str) -> bool:
    """Whether a class of ours has it, not one of PySpark's that it is derived from."""
    home = next(one for one in thing.__mro__ if member in vars(one))
    return home.__module__.partition(".")[0] == "everflow"


def public_names() -> frozenset[str]:
    """What has to have an entry."""
    return frozenset(PLACES)


def entries() -> list[str]:
    """Every name on the page, with its members: ``KStream``, ``KStream.filter``,
    ``errors.ConfigError``."""
    names = [name for section in SECTIONS for name in section.names.split()]
    return [
        *names,
        *(f"{name}.{member}" for name in names for member, _ in members(name, found(name))),
    ]


def made() -> str:
    """The whole page."""
    sections = "\n".join(_section(section) for section in SECTIONS)
    errors = [
        name
        for name in everflow.__all__
        if isinstance(found(name), type) and issubclass(found(name), Exception)
    ]
    return HEAD + sections + _errors(errors)


HEAD = """# Reference

All public names, each with one sentence or a few. Each section links to the page that explains its names with examples. The page
is made from the docstrings by `tests/reference_page.py`.

The module in parentheses after a name is the one to import it from. Parameters after a `*` are keyword-only.
`help(StreamsBuilder.stream)` shows a whole docstring, with all parameters.
"""  # noqa: E501


def _section(section: Section) -> str:
    lines = [
        "",
        f"## {section.title}",
        "",
        f"Explained in [{_page_name(section.page)}]({section.page}).",
    ]
    for name in section.names.split():
        if name == "errors":
            continue
        thing = found(name)
        lines += ["", f"### {name}", "", _entry(name, thing, _place(name))]
        rows = [
            f"- `{_written(name, one, value)}`: {_text(f'{name}.{one}', value)}"
            for one, value in members(name, thing)
        ]
        rows = _metrics() if name == "metrics" else rows
        lines += ["", *rows] if rows else []
    return "\n".join(lines)


def _metrics() -> list[str]:
    """The names that `KafkaStreams.metrics` may have, and what each is counted in."""
    named = {
        name: value
        for name, value in vars(everflow.metrics).items()
        if name.isupper() and isinstance(value, str)
    }
    units = {everflow.metrics.CLIENT_STATE: "the state", **everflow.metrics.UNITS}
    return [
        f"- `metrics.{name}`: `{value}`, {units.get(value, 'with labels: at `/metrics`')}."
        for name, value in named.items()
    ]


def _page_name(link: str) -> str:
    return link.partition("#")[0].rpartition("/")[2]


def _entry(name: str, thing: Any, place: str) -> str:
    return (
        f"`{name if inspect.ismodule(thing) else _signature(name, thing)}`{place}: "
        f"{_text(name, thing)}"
    )


def _errors(of_the_package: list[str]) -> str:
    classes = {
        name: value for name, value in members("errors", everflow.errors) if isinstance(value, type)
    }
    classes |= {name: found(name) for name in of_the_package}
    rows = []
    for name, value in sorted(classes.items()):
        code = f", `{value.code}`" if hasattr(value, "code") else ""
        place = f" (`{'everflow' if name in of_the_package else 'everflow.errors'}`)"
        rows.append(f"- `{name}`{code}{place}: {_text(f'errors.{name}', value)}")
    return "\n\n" + "\n".join(rows) + "\n"


def _place(name: str) -> str:
    return f" (`{PLACES[name]}`)"


def _written(name: str, member: str, value: Any) -> str:
    """A member with its parameters, their defaults, and a module's name in front."""
    called = f"{name}.{member}" if inspect.ismodule(found(name)) else member
    return called if isinstance(value, property) else _signature(called, value)


def _signature(name: str, thing: Any) -> str:
    if isinstance(thing, type) and issubclass(thing, enum.Enum):
        return f"{name}: {', '.join(thing.__members__)}"
    if (
        not callable(thing)
        or getattr(thing, "_is_protocol", False)
        or name in {*RETURNED, "StateListener", "StreamsConfig"}
    ):
        return name
    called = getattr(thing, "__init__", None)
    called = called if isinstance(thing, type) and inspect.isfunction(called) else thing
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty, default=_Shown.of(parameter.default))
        for parameter in inspect.signature(called).parameters.values()
        if parameter.name not in ("self", "cls") and not parameter.name.startswith("_")
    ]
    return f"{name}{inspect.Signature(bare)}"


@dataclass(frozen=True)
class _Shown:
    """A default as one would write it; what is made anew each time as dots."""

    text: str

    @staticmethod
    def of(default: Any) -> Any:
        if inspect.isfunction(default):
            return _Shown(default.__name__)
        return _Shown("...") if repr(default) == "<factory>" else default

    def __repr__(self) -> str:
        return self.text


def _text(name: str, thing: Any) -> str:
    """The first paragraph of a docstring, as Markdown. Raises LookupError where there is none."""
    text = WITHOUT_DOCSTRING.get(name) or inspect.getdoc(thing)
    if not text or text.startswith(
        ("Built-in immutable", "An enumeration", f"{name.rpartition('.')[2]}(")
    ):
        raise LookupError(f"{name} has no docstring")
    paragraph = " ".join(text.partition("\n\n")[0].split())
    paragraph = _NOT_FOR_READERS.sub("", re.sub(r"``(.+?)``", r"`\1`", paragraph))
    return paragraph if paragraph.endswith((".", ":")) else f"{paragraph}."


if __name__ == "__main__":
    PAGE.write_text(made())
