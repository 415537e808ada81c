"""Somebody deletes what a running instance stands on: it stops and says so, it does not stand
still."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from integration.crash.crash_instance import Application

KEYS = [f"k{n}" for n in range(20)]


def busy(app: Application) -> Application:
    app.start()
    app.produce([(key, "one") for key in KEYS])
    app.drain()
    return app


@pytest.mark.slow  # `test_task_directory` has the folder that is gone without a broker
def test_a_state_folder_deleted_under_the_instance_stops_it_and_a_restart_restores(
    application: Callable[..., Application],
) -> None:
    app = busy(application())
    shutil.rmtree(app.state)
    app.produce([(key, "two") for key in KEYS])
    assert app.wait_end(60.0) != 0
    assert "[EF-STATE-DISK] The state folder" in app.said()
    assert "was deleted under the running instance" in app.said()
    assert "driver gone" not in app.said(), "the commit gate does not lie in the state folder"
    app.start()
    app.drain()
    app.check()


@pytest.mark.slow
def test_a_changelog_deleted_under_the_instance_stops_it_soon(
    application: Callable[..., Application],
) -> None:
    app = busy(application())
    changelog = app.changelogs()[0].topic
    app.admin.delete_topics([changelog])
    app.produce([(key, "two") for key in KEYS])
    assert app.wait_end(45.0) != 0
    assert (
        f"[EF-INTERNAL-TOPIC] Topic {changelog} was deleted while the application ran" in app.said()
    )
