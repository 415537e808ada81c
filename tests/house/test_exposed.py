"""What the code may not do: start a shell, unpickle what others say, leave files to others."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "src", ROOT / "simulation", ROOT / "demo"]
"""Folders whose packages are in the wheel."""
UNPICKLE = {
    "everflow/protocol/messages.py",  # a message between the driver and its own workers
    "everflow/spark/job.py",  # a row of its own Spark job
    "everflow_simulation/channel.py",  # within one process
    "everflow/travel/pickled_objects.py",  # the program, from the driver to its workers
    "everflow/spark/columns.py",  # the program's functions in Columns
    "everflow/sources/data_source.py",  # a partition, from its own topic (guide/security.md)
}
"""Who unpickles, and whose bytes they are."""
SHELLS = {"system", "popen", "getoutput", "getstatusoutput", "create_subprocess_shell"}
UNPICKLERS = {"loads", "load", "Unpickler"}


def calls(path: Path) -> list[tuple[str, str, ast.Call]]:
    """(module or object, name, call) of every call of an attribute or a plain name."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                found.append((ast.unparse(node.func.value), node.func.attr, node))
            elif isinstance(node.func, ast.Name):
                found.append(("", node.func.id, node))
    return found


def wrong(path: Path) -> list[str]:
    told = []
    folder = next((one for one in SOURCES if path.is_relative_to(one)), path.parent)
    name = path.relative_to(folder).as_posix()
    for owner, call, node in calls(path):
        shell = [word.value for word in node.keywords if word.arg == "shell"]
        if (owner in ("os", "subprocess", "asyncio") and call in SHELLS) or shell:
            told.append(f"{name}:{node.lineno} starts a shell")
        pickles = owner in ("pickle", "cloudpickle", "marshal", "shelve")
        if pickles and call in UNPICKLERS and name not in UNPICKLE:
            told.append(f"{name}:{node.lineno} unpickles")
        if call == "mktemp" or (owner == "tempfile" and call == "NamedTemporaryFile"):
            told.append(f"{name}:{node.lineno} makes a file that others may be first to make")
        if not owner and call in ("eval", "exec"):
            told.append(f"{name}:{node.lineno} runs text")
    return told


def test_nothing_starts_a_shell_unpickles_what_others_say_or_leaves_open_files() -> None:
    assert [
        text for folder in SOURCES for path in sorted(folder.rglob("*.py")) for text in wrong(path)
    ] == []


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("os.system('ls')", "shell"),
        ("subprocess.run('ls', shell=True)", "shell"),
        ("pickle.loads(b'')", "unpickles"),
        ("tempfile.mktemp()", "first to make"),
        ("eval('1')", "runs text"),
    ],
)
def test_it_would_be_found(tmp_path: Path, code: str, says: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(code)
    assert says in " ".join(wrong(path))
