"""What pages name is there: code, tests, examples, error codes."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from changed_tests import FOLDERS
from chaos.rounds.schedule import FaultKind

ROOT = Path(__file__).parents[2]
NOTES = ROOT / "docs" / "design"
HOLDS = re.findall(
    r"^\| \[[^\]]+\]\((\S+)\) \| holds", (NOTES / "README.md").read_text(), re.MULTILINE
)
PAGES = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "STYLE.md",
    ROOT / "RELEASING.md",
    ROOT / "docs" / "ARCHITECTURE.md",
    *(NOTES / name for name in HOLDS),
]
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
SOURCES.remove(Path(__file__))

OTHERS = {
    "005-elastic.md": {"StreamsPartitionAssignor"},  # Kafka Streams'
    "009-functions-travel.md": {"queue.py", "register_pickle_by_value"},
    "014-columns-in-the-step.md": {"UnsafeProjection"},  # Spark's
    "044-damaged-bytes.md": {"check.crcs"},  # librdkafka's
    "069-schemas.md": {
        "SchemaConverters",  # Spark's
        *("HeaderSchemaIdSerializer", "GenericAvroSerde"),  # Confluent's
        *("GenericDatumReader", "DynamicMessage"),  # Apache's, Google's
    },
    "071-change-data.md": {  # Kafka Connect's and Debezium's
        *("JsonConverter", "JsonSchemaConverter", "ProtobufConverter"),
        *("ExtractNewRecordState", "UnchangedToastedPlaceholder"),
    },
}
"""Names of others, and of examples."""

_SPAN = re.compile(r"`([^`\n]+)`")
_PLACE = re.compile(r"([\w/.]*\w\.py)(?:: ?([A-Za-z_][\w.]*))?")
_DOTTED = re.compile(r"([a-z]\w+)\.(?!py$)([A-Za-z_]\w+)")
_MEMBER = re.compile(r"(?<![\w.])(_?[A-Z]\w+)\.(\w+)")
_NAME = re.compile(r"(?<![\w.$-])(?:[A-Z][a-z]+\w*[A-Z]\w*|_?[A-Za-z]\w*_\w+|_[a-z]\w+)(?![\w=-])")


@cache
def defined(path: Path) -> frozenset[str]:
    """What a module defines at any depth, its parameters, the values it names, its imports."""
    return named_in(ast.parse(path.read_text())) | {path.stem, path.parent.name}


def named_in(tree: ast.AST) -> frozenset[str]:
    found = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.arg() | ast.keyword() if node.arg:
                found.add(node.arg)
            case ast.alias():
                found.add(node.asname or node.name)
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.Attribute(ctx=ast.Store()):
                found.add(node.attr)
            case ast.Constant(str() as word) if word.isidentifier():
                found.add(word)
    return frozenset(found)


ALL = frozenset().union(*(defined(path) for path in SOURCES))
CLASSES: dict[str, list[ast.ClassDef]] = {}
for one in (node for path in SOURCES for node in ast.walk(ast.parse(path.read_text()))):
    if isinstance(one, ast.ClassDef):
        CLASSES.setdefault(one.name, []).append(one)


def inherits(name: str, attribute: str) -> bool:
    """True if a class of this name, or a base of it, has the attribute."""
    return any(
        attribute in named_in(one) or any(inherits(ast.unparse(b), attribute) for b in one.bases)
        for one in CLASSES.get(name, ())
    )


def member(path: Path, dotted: str) -> bool:
    """True if a module has what ``name`` or ``Class.name`` says."""
    if "." not in dotted:
        return dotted in defined(path)
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    for part in dotted.split("."):
        named = [node for node in body if part in _names(node)]
        if not named:
            return False
        body = getattr(named[0], "body", [])
    return True


def _names(node: ast.stmt) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {getattr(node, "name", ""), *(one.id for one in targets if isinstance(one, ast.Name))}


def wrong(text: str) -> Iterator[str]:
    for span in _SPAN.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        for file, name in _PLACE.findall(span):
            places = [path for path in SOURCES if f"/{path.relative_to(ROOT)}".endswith(f"/{file}")]
            if not places:
                yield file
            elif name and not any(member(path, name) for path in places):
                yield f"{file}:{name}"
        if dotted := _DOTTED.fullmatch(span):
            module, name = dotted.groups()
            homes = [path for path in SOURCES if path.stem == module]
            if homes and not any(name in defined(path) for path in homes):
                yield span
        for name, attribute in _MEMBER.findall(_PLACE.sub("", span)):
            if name in CLASSES and not inherits(name, attribute):
                yield f"{name}.{attribute}"
        yield from (
            name
            for name in _NAME.findall(_PLACE.sub("", span))
            if name not in ALL and not name.isupper()
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    known = OTHERS.get(page.name, set())
    assert sorted(set(wrong(page.read_text())) - known) == []


def test_no_exception_is_needless() -> None:
    for name, known in OTHERS.items():
        assert known - set(wrong((NOTES / name).read_text())) == set()


SCENARIOS = (ROOT / "docs" / "SCENARIOS.md").read_text()
FAILURES = (ROOT / "docs" / "guide" / "failures.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", SCENARIOS + FAILURES)))
REQUIRED = set(range(1, 42))


@pytest.mark.parametrize(("path", "name"), NAMED, ids=str)
def test_a_named_test_exists(path: str, name: str) -> None:
    assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_every_scenario_of_the_main_job_has_a_row_with_a_test() -> None:
    rows = dict(re.findall(r"^\| (\d+) \|(?:[^|]+\|){2}(.*)\|$", SCENARIOS, re.MULTILINE))
    assert {number for number in REQUIRED if "::" not in rows.get(str(number), "")} == set()


def test_every_scenario_says_by_which_faults_it_is_met_under_load() -> None:
    rows = dict(re.findall(r"^\| (\d+) \|[^|]+\|([^|]+)\|.*\|$", SCENARIOS, re.MULTILINE))
    assert {int(number) for number in rows} == REQUIRED
    kinds = {kind.value for kind in FaultKind} | {"elastic"}
    for number, told in rows.items():
        named = set(re.findall(r"`([^`]+)`", told))
        nameless = told.startswith((" no: ", " all kinds: ", " each run: "))
        assert named <= kinds, f"scenario {number}:{told}"
        assert bool(named) != nameless, f"scenario {number}:{told}"


def test_every_failure_has_a_row_with_a_test_and_a_reason_where_it_differs() -> None:
    rows = re.findall(r"^\| (\d+) \|(.*)\|$", FAILURES, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    for number, row in rows:
        event, _, here, ends, why, tests = (cell.strip() for cell in row.split("|"))
        assert "" not in (event, here, ends), f"row {number}"
        assert why or "the same" in here or "not there" in row, f"row {number}: why does it differ?"
        assert "::" in tests, f"row {number}"


def test_every_published_anomaly_has_a_row_with_a_test() -> None:
    rows = dict(re.findall(r"^\| (A\d+) \|(?:[^|]+\|){3}(.*)\|$", SCENARIOS, re.MULTILINE))
    assert list(rows) == [f"A{number}" for number in range(1, 16)]
    assert [name for name, tests in rows.items() if "::" not in tests] == []


DIFFERENCES_PAGE = (ROOT / "docs" / "differences.md").read_text()
ROWS = [
    line.strip("| ").split(" | ") for line in DIFFERENCES_PAGE.splitlines() if line.startswith("| ")
]
DIFFERENCES = {row[0]: row for row in ROWS if row[0] not in ("what", "---")}
TESTS = [*(ROOT / "tests").rglob("test_*.py"), *ROOT.glob("*/tests/test_*.py")]
NAMES = {path.name for path in TESTS} | {
    name for path in TESTS for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_a_difference_has_a_reason_and_a_test(what: str) -> None:
    row = DIFFERENCES[what]
    assert len(row) == 5
    assert "" not in [cell.strip() for cell in row]
    named = [Path(name).name for name in re.findall(r"`([\w/.]+)`", row[4])]
    assert row[4] == "the same" or {*named} & NAMES, "no test that is there"
    assert [name for name in named if name.startswith("test_") and name not in NAMES] == []


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
TOP = {path.name for path in ROOT.iterdir()}
EXAMPLES = {path.name for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".ipynb")}


def paths(text: str) -> list[str]:
    """What looks like a path from the checkout's root, in code spans and links."""
    spans = [word for span in re.findall(r"`([^`]+)`", text) for word in span.split()]
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    return sorted({one for one in [*spans, *links] if one and one.split("/")[0] in TOP})


@pytest.mark.parametrize("path", paths(CONTRIBUTING))
def test_every_path_that_is_named_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_every_package_has_its_row() -> None:
    table = CONTRIBUTING.partition("## Where what runs")[2].partition("## Tests")[0]
    packages = {
        f"src/everflow/{path.parent.name}/"
        for path in (ROOT / "src" / "everflow").glob("*/__init__.py")
    }
    rows = set(re.findall(r"src/everflow/\w+/", table))
    assert packages - rows == set()


def test_every_folder_of_tests_has_its_row() -> None:
    folders = {
        f"tests/{path.name}/"
        for path in (ROOT / "tests").iterdir()
        if path.is_dir() and any(path.rglob("test_*.py"))
    }
    assert {folder for folder in folders if f"| `{folder}` |" not in CONTRIBUTING} == set()


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "examples/README.md"])
def test_the_readme_leads_there(name: str) -> None:
    assert f"]({name})" in (ROOT / "README.md").read_text()


def test_every_example_is_listed_and_run_by_a_test() -> None:
    listed = (ROOT / "examples" / "README.md").read_text()
    assert set(re.findall(r"^\| \[([^\]]+)\]", listed, re.MULTILINE)) == EXAMPLES
    tests = "\n".join(
        path.read_text()
        for folder in ("tests", "examples", "bench/tests")
        for path in (ROOT / folder).rglob("test_*.py")
        if path != Path(__file__)
    )
    unused = {
        name
        for name in EXAMPLES
        if not name.startswith("test_") and not re.search(rf"\b{name.partition('.')[0]}\b", tests)
    }
    assert unused == set()


# Codes that are cited (D6, I4, "reference 1.6", "note 005") exist; the index has every note.

DICTIONARY = NOTES / "000-the-design.md"
INDEX = NOTES / "README.md"

_HEADING = re.compile(r"^### (.+)$", re.MULTILINE)
_LINK = re.compile(
    r"^\| \[(\d{3}) [^\]]+\]\((\d{3}-[a-z-]+\.md)\) \| (\S[^|]*) \| \d{4}-\d{2} \| \S[^|]* \|$",
    re.MULTILINE,
)
# A code stands alone: not in a name, a file's number, a hexadecimal text or a KIP's.
_CODE = re.compile(r"(?<![\w.`/-])([DIX]\d{1,2})(?![\w.]*[\w-])")
_SECTION = re.compile(r"\b(reference|design) (?:section )?(\d(?:\.\d)?)(?: and (\d\.\d))?\b")
_NOTE = re.compile(r"\bnote (\d{3})\b")


def anchors() -> set[str]:
    return {found.lower() for found in _HEADING.findall(DICTIONARY.read_text())}


def cited(text: str) -> set[str]:
    """The codes in a text, as the dictionary's headings spell them."""
    found = {code.lower() for code in _CODE.findall(text)}
    for kind, *numbers in _SECTION.findall(text):
        found |= {
            f"{'reference' if kind == 'reference' else 'design section'} {number}"
            for number in numbers
            if number
        }
    return found


FILES = sorted(
    path
    for folder in (*FOLDERS, "docs")
    for suffix in ("py", "md")
    for path in (ROOT / folder).rglob(f"*.{suffix}")
    if path != Path(__file__)
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_code_that_is_cited_is_in_the_dictionary(path: Path) -> None:
    assert cited(path.read_text()) - anchors() == set(), (
        f"define it in {DICTIONARY.name}, or say it in words"
    )


def test_every_note_that_is_cited_exists() -> None:
    numbers = {note.name[:3] for note in NOTES.glob("[0-9]*.md")}
    found = [(str(path), one) for path in FILES for one in _NOTE.findall(path.read_text())]
    assert [place for place in found if place[1] not in numbers] == []


def test_the_index_has_every_note_once_with_status_and_date() -> None:
    rows = _LINK.findall(INDEX.read_text())
    assert [name for _, name, _ in rows] == sorted(note.name for note in NOTES.glob("[0-9]*.md"))
    assert all(name.startswith(number) for number, name, _ in rows)


def test_every_definition_is_used() -> None:
    used = set().union(*(cited(path.read_text()) for path in FILES if path != DICTIONARY))
    assert anchors() - used <= {"d12", "i7"}, (
        "the decisions and invariants are a whole; a reference is there to be cited"
    )
