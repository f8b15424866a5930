"""Families of commands that Kafka's tools have as options of one command."""

from typing import Any

import typer
from typer.core import TyperGroup


class CommandFamily(TyperGroup):
    """Says which command it is, if one is given as an option, such as `--describe`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See click. Raises `typer.BadParameter` for a command that is given as an option."""
        for one in args[:1]:
            name = one.removeprefix("--").removesuffix("-offsets")
            if one.startswith("--") and name in self.commands:
                text = f"{one} is a command here, without dashes: {ctx.command_path} {name}"
                raise typer.BadParameter(text, ctx=ctx)
        return super().parse_args(ctx, args)
