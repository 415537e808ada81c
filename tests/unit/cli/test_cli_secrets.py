"""Secrets on a command line: a warning, a folder instead with every command, and none on a page."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from everflow.cli.app import app
from everflow.cli.commands import Cluster, assignments
from everflow.setting_checks import is_secret

ROOT = Path(__file__).parents[3]
SECRET = [
    "sasl.password",
    "producer.sasl.password",
    "sasl_password",
    "sasl.jaas.config",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.config",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.key",
    "ssl.keystore.password",
    "ssl.truststore.password",
    "spark.hadoop.fs.s3a.secret.key",
]
OPEN = [
    "sasl.username",
    "security.protocol",
    "query.token.file",
    "sasl.oauthbearer.token.endpoint.url",
    "ssl.key.location",
    "ssl.ca.pem",
    "ssl.certificate.pem",
    "query.ssl.key.location",
    "application.id",
]


@pytest.mark.parametrize("option", ["--set", "--conf"])
def test_a_secret_there_is_warned_of(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = [f"{key}=hunter2" for key in SECRET + OPEN]
    assert set(assignments(option, given).values()) == {"hunter2"}
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert len(lines) == len(SECRET)
    for line, key in zip(lines, SECRET, strict=True):
        assert line.startswith(f"warning: {option} {key} ")
    assert "hunter2" not in said.err
    assert not any(map(is_secret, OPEN))


def test_a_folder_s_secret_is_not_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "hunter2\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    config = Cluster("b:1", ["sasl.username=you"], [tmp_path]).config()
    assert config.admin()["sasl.password"] == "hunter2"
    assert config.admin()["sasl.username"] == "you"
    assert capsys.readouterr() == ("", "")


def commands(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for part, command in getattr(group, "commands", {}).items():
        yield from commands(command, f"{name} {part}")
    if not hasattr(group, "commands"):
        yield name, group


def test_every_command_that_takes_settings_takes_a_folder_of_them() -> None:
    options = {
        name: {option for one in command.params for option in one.opts}
        for name, command in commands(get_command(app))
    }
    setting = {name for name, found in options.items() if "--set" in found}
    assert len(setting) > 10
    assert setting == {name for name, found in options.items() if "--settings-folder" in found}


PAGES = sorted(
    {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")}
)


def test_no_page_shows_a_secret_on_a_command_line() -> None:
    found = []
    for page in PAGES:
        for block in re.findall(r"```(?:bash|sh|console)\n(.*?)```", page.read_text(), re.S):
            for line in block.replace("\\\n", " ").splitlines():
                settings = re.findall(r"--(?:set|conf|from-literal)[ =]([\w.]+)=", line)
                shown = any(map(is_secret, settings)) or "--from-literal" in line
                header = re.search(r"(?<!printf ')Authorization: (Bearer|Basic)", line)
                if shown or header or re.search(r"curl .*(-u|--user) ", line):
                    found.append((page.name, line))
    assert found == []
