"""What somebody who knows other commands may take for an option here, and is told instead.

Kafka's tools have options for what are commands here; and some commands here find a cluster at
addresses for Kafka's clients, others at those for quorumlog's own.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import typer
from typer.core import TyperGroup

_BROKERS: Final = (
    "--bootstrap-server",
    "it asks brokers by Kafka's protocol: give --bootstrap-server HOST:PORT, kafkaListen of any "
    "node",
)
_NODES: Final = (
    "--servers",
    "it asks nodes by quorumlog's own protocol: give --servers HOST:PORT, the address of any node "
    "in peers",
)
_MEANT: Final = {
    "--servers": _BROKERS,
    "-s": _BROKERS,
    "--bootstrap-server": _NODES,
    "--bootstrap-servers": _NODES,
    "-b": _NODES,
}
"""Options by which some commands find a cluster: what takes their place in others, and why."""


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


class AllCommands(TyperGroup):
    """Says how a command finds the cluster, if it is given the addresses for other commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See click. Raises `typer.BadParameter` for an option that other commands have."""
        command: Any = self
        path, given = [ctx.command_path], args
        while isinstance(command, TyperGroup) and given and given[0] in command.commands:
            path.append(given[0])
            command, given = command.commands[given[0]], given[1:]
        known = {name for one in command.params for name in one.opts}
        for option in _options_in(given):
            instead, why = _MEANT.get(option, ("", ""))
            if option not in known and instead in known:
                text = f"{' '.join(path)} has no {option}, as {why}"
                raise typer.BadParameter(text, ctx=ctx)
        return super().resolve_command(ctx, args)


def _options_in(arguments: Iterable[str]) -> Iterator[str]:
    """Yield the names of options before an argument that ends them."""
    for one in arguments:
        if one == "--":
            return
        yield one.partition("=")[0]
