"""``everflow new``: makes a program with its test, from the templates in ``project/``."""

from __future__ import annotations

import keyword
import os
import re
import shlex
import shutil
import sys
from enum import Enum
from importlib.machinery import PathFinder
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from everflow.cli.commands import command
from everflow.errors import ConfigError


class ProjectSchema(str, Enum):
    """Formats of a schema registry that a project may begin with."""

    avro = "avro"


TEMPLATES = Path(__file__).parent / "project"
FILES = {
    "program.py.tmpl": "$module.py",
    "test_program.py.tmpl": "tests/test_$module.py",
    "sample.jsonl.tmpl": "sample.jsonl",
    "README.md.tmpl": "README.md",
    "pyproject.toml.tmpl": "pyproject.toml",
    "gitignore.tmpl": ".gitignore",
}
FILES_OF_A_REGISTRY = {"conftest.py.tmpl": "tests/conftest.py"}
_OF_THE_PROJECT = {
    "tests": "the folder of its own tests",
    "conftest": "pytest's file of fixtures",
    "setup": "the script that builds a package",
}
"""Names that tools give a meaning to where a module of that name lies."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,99}")


@command()
def new(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name of the project, e.g. page-views, or a path that ends in it."
        ),
    ],
    schema: Annotated[
        ProjectSchema | None,
        typer.Option(help="Format of the input topic, with a schema registry. Default: JSON."),
    ] = None,
) -> None:
    """Create a folder with a small program, its test, sample records and a README with the commands
    to run it."""
    folder = Path(name).expanduser()
    module = module_name(folder.name)
    written = make(folder, module, schema)
    typer.echo(f"{folder}: {', '.join(written)}")
    typer.echo("\n".join(next_steps(folder, module, schema)))


def module_name(name: str) -> str:
    """The module of a project called ``name``. ConfigError, with another name, for what is none."""
    module = name.replace("-", "_")
    if not _NAME.fullmatch(name):
        problem = "a project's name is a letter and then letters, digits, '-' or '_' (100 at most)"
    elif keyword.iskeyword(module) or keyword.issoftkeyword(module):
        problem = f"{module!r} is a word of Python's, and the program is a module of that name"
    elif module in _OF_THE_PROJECT:
        problem = f"the program would be taken for {_OF_THE_PROJECT[module]}"
    elif _taken(module):
        problem = f"the program would hide the installed module {module!r}"
    else:
        return module
    raise ConfigError(
        f"{name!r} cannot be a project's name: {problem}. How about {_proposed(name)}?"
    )


def make(folder: Path, module: str, schema: ProjectSchema | None = None) -> list[str]:
    """Write the project; the files' names. ConfigError for a folder that is full or unwritable."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} exists and is not a folder. Choose another name.")
    try:
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(
                f"{folder} exists and is not empty. Choose another name; nothing was written."
            )
        names = {"name": folder.name, "module": module, **_format_of(module, schema)}
        written = []
        files = FILES if schema is None else {**FILES, **FILES_OF_A_REGISTRY}
        for template, place in files.items():
            path = folder / Template(place).substitute(names)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                Template((TEMPLATES / template).read_text(encoding="utf-8")).substitute(names),
                encoding="utf-8",
            )
            written.append(str(path.relative_to(folder)))
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}.") from None
    return written


_AVRO = """\
VIEW = serdes.avro(  # without a registry, as in the tests, values are bare
    {
        "type": "record",
        "name": "View",
        "fields": [{"name": "page", "type": "string"}, {"name": "ms", "type": "double"}],
    },
    registry=os.environ.get("SCHEMA_REGISTRY_URL"),
    subject="page-views-value",
    auto_register=True,  # for development; in production CI registers schemas
)"""
_JSON = (
    'VIEW = serdes.json("page string, ms double")  '
    '# a value on the input topic: {"page": "/news/today", "ms": 35}'
)
_PRODUCE = "everflow produce page-views"
_SET = "export SCHEMA_REGISTRY_URL=http://localhost:8081"


def _register(module: str, python: str = "python") -> str:
    return f'{python} -c "from {module} import VIEW; print(VIEW.version().id)"'


def _format_of(module: str, schema: ProjectSchema | None) -> dict[str, str]:
    """What the templates say of the input's format."""
    if schema is None:
        form = {"form": "JSON", "imports": "", "view": _JSON, "needs": "everflow", "before": ""}
        return {**form, "produce": f"    {_PRODUCE} < sample.jsonl"}
    lines = ("# your schema registry", _SET, "# registers the schema", _register(module))
    return {
        "form": "Avro, with a schema registry",
        "imports": "\nimport os\n",
        "view": _AVRO,
        "needs": "everflow[schemas]",
        "before": "".join(f"    {line}\n" for line in lines),
        "produce": f"    {_PRODUCE} --schema http://localhost:8081 < sample.jsonl",
    }


def next_steps(folder: Path, module: str, schema: ProjectSchema | None = None) -> list[str]:
    everflow, python = "everflow", "python"
    if shutil.which("everflow") is None:
        everflow, python = (
            os.path.relpath(path, folder)
            for path in (Path(sys.executable).parent / "everflow", sys.executable)
        )
        everflow, python = shlex.quote(everflow), shlex.quote(python)
    given = "" if schema is None else " --schema http://localhost:8081"
    return [
        "next:",
        f"  cd {shlex.quote(str(folder))}",
        f"  {python} -m pytest",
        f"  {everflow} broker --port 9092 --topic page-views:4 --topic views-per-section:4       "
        "# stays: a terminal of its own",
        *(() if schema is None else (f"  {_SET}", f"  {_register(module, python)}")),
        f"  {everflow} run {module}:builder --application-id {folder.name} --bootstrap-servers "
        "localhost:9092     # another one",
        f"  {everflow} produce page-views{given} < sample.jsonl",
        f"  {everflow} consume views-per-section --window time --timeout 10",
        "README.md says more.",
    ]


def _taken(module: str) -> bool:
    if module in sys.stdlib_module_names:
        return True
    here = str(Path.cwd())
    found = PathFinder.find_spec(module, [entry for entry in sys.path if entry not in ("", here)])
    return found is not None and found.origin is not None


def _proposed(name: str) -> str:
    slug = (
        re.sub(r"[^a-z0-9]+", "-", name.lower()).lstrip("-0123456789").rstrip("-")[:90]
        or "my-program"
    )
    module = slug.replace("-", "_")
    word = keyword.iskeyword(module) or keyword.issoftkeyword(module)
    return f"my-{slug}" if word or module in _OF_THE_PROJECT or _taken(module) else slug
