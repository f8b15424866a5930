"""`quorumlog serve`: run one node in the foreground."""

from pathlib import Path
from typing import Annotated

import typer


def serve_command(
    config: Annotated[
        Path, typer.Option("--config", "-c", help="TOML file of the node.", show_default=False)
    ],
) -> None:
    """Run a node until SIGTERM or Ctrl-C; its log goes to standard error."""
    # no other command needs a node's modules, which take longest to load
    from quorumlog.model.config import load_config  # noqa: PLC0415
    from quorumlog.service.main import serve  # noqa: PLC0415

    raise typer.Exit(serve(load_config(config)))
