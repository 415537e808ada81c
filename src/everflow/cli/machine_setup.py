"""Prepares a machine (``everflow setup``): does beforehand what a first start would do."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from everflow.cli.cluster_options import Debug, ErrorsForPeople


def register(app: typer.Typer, errors_for_people: ErrorsForPeople) -> None:
    """Add the command to the ``everflow`` command."""

    @app.command()
    def setup(
        broker: Annotated[
            bool, typer.Option("--broker", help="For the embedded broker, too.")
        ] = False,
        debug: Debug = False,
    ) -> None:
        """Prepare a machine or an image: make the class archive from which Spark's JVM starts in
        half the time; for the embedded broker fetch the jars, too.

        Both go to everflow's cache ($XDG_CACHE_HOME/everflow, by default ~/.cache/everflow), an
        archive has 100 MB; whoever starts everflow with that cache has them. What is there is not
        made again.
        """
        with errors_for_people(debug):
            from everflow.cli.cluster import own_status
            from everflow.jvm import find_java, make_archive, resolve_jars

            typer.echo(f"Java: {find_java()}")
            with own_status() as status:
                if broker:
                    with status.waiting("fetching the jars of broker"):
                        resolve_jars("broker")
                for conf in ("spark", "broker") if broker else ("spark",):
                    began = time.monotonic()
                    with status.waiting(f"making the class archive of {conf}"):
                        problem = make_archive(conf)
                    took = f"{time.monotonic() - began:.0f} s"
                    done = (
                        f"ready ({took})"
                        if problem is None
                        else f"not made, so {conf} starts as quickly as without:\n{problem}"
                    )
                    typer.echo(f"{conf}: class archive {done}")
