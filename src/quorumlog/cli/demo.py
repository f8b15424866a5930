"""`quorumlog demo`: the whole system at work on real data."""

from pathlib import Path
from typing import Annotated

import typer

from quorumlog.cli.errors import CommandError
from quorumlog.cli.local_certificates import make_missing


def demo_command(
    records: Annotated[
        int | None,
        typer.Option("--records", min=1, help="Number of flights.", show_default="all"),
    ] = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="With TLS, certificates and rights.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the cluster's files.")] = False,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Work here.", show_default="a new temporary directory"),
    ] = None,
) -> None:
    """Three nodes, all flights of 2013, leaders killed, Kafka's clients, Spark, and the proof."""
    try:
        # Spark and matplotlib are an extra, and slow to load
        from quorumlog.demo.run import run_demo  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise CommandError(
            f"the demo needs {error.name}, which is not installed; "
            "pip install 'quorumlog[demo]', or 'make setup' in a checkout"
        ) from error
    raise typer.Exit(run_demo(records, keep, directory, make_missing if secure else None))
