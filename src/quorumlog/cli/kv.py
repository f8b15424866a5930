"""`quorumlog kv`: keys and values of a group that has the key-value machine."""

import asyncio
import base64
import os
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Annotated, TypeVar

import typer

from quorumlog.cli.errors import CommandError
from quorumlog.cli.options import (
    TIMEOUT_SECONDS,
    AsJson,
    ContextName,
    FromDir,
    Group,
    Servers,
    Timeout,
)
from quorumlog.cli.output import flush_every_line, print_json, print_line, print_note, printable
from quorumlog.cli.target import Target, find_target
from quorumlog.client import KV, Client, KeyEvent, KeyItem

T = TypeVar("T")

Key = Annotated[str, typer.Argument(metavar="KEY", help="1 to 511 bytes.", show_default=False)]
Prefix = Annotated[
    str, typer.Argument(metavar="[PREFIX]", help="Of the keys.", show_default="all keys")
]

app = typer.Typer(
    help="Keys and values of a group with the machine kv ('cluster up --machine kv').",
    no_args_is_help=True,
)


@app.command(name="put")
def put_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="What it gets.")],
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    group: Group = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Give a key a value; print the one before."""
    target = find_target(directory, servers, group, timeout, context)
    raw, new = os.fsencode(key), os.fsencode(value)
    _print_previous(_run(target, lambda kv: kv.put(raw, new)), as_json)


@app.command(name="get")
def get_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    key: Key,
    stale: Annotated[
        bool, typer.Option("--stale", help="Let any replica answer, which may be a little behind.")
    ] = False,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    group: Group = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Print the value of a key; exit status 1 if there is no such key."""
    target = find_target(directory, servers, group, timeout, context)
    raw = os.fsencode(key)
    value, index = _run(target, lambda kv: kv.get_with_index(raw, linearizable=not stale))
    if value is None:
        raise CommandError(f"group {target.group} has no key {printable(raw)}")
    if as_json:
        print_json({"key_base64": _base64(raw), "value_base64": _base64(value), "index": index})
    else:
        print_line(printable(value))


@app.command(name="del")
def delete_command(
    key: Key,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    group: Group = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Remove a key, if there is one; print its value."""
    target = find_target(directory, servers, group, timeout, context)
    raw = os.fsencode(key)
    _print_previous(_run(target, lambda kv: kv.delete(raw)), as_json)


@app.command(name="scan")
def scan_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    prefix: Prefix = "",
    begin: Annotated[
        str | None,
        typer.Option("--from", metavar="KEY", help="First key.", show_default="the first one"),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="KEY", help="Key to stop before.", show_default="no end"),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help="Most keys to print.", show_default="all"),
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="From the last to the first.")] = False,
    stale: Annotated[
        bool, typer.Option("--stale", help="Let any replica answer, which may be a little behind.")
    ] = False,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    group: Group = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Print keys and their values, in order of the keys' bytes."""
    target = find_target(directory, servers, group, timeout, context)

    async def scan(kv: KV) -> None:
        items = kv.scan(
            os.fsencode(begin or ""),
            None if end is None else os.fsencode(end),
            prefix=os.fsencode(prefix),
            limit=limit,
            reverse=reverse,
            linearizable=not stale,
        )
        async with aclosing(items):
            async for item in items:
                _print_item(item, as_json)

    _run(target, scan)


@app.command(name="watch")
def watch_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    prefix: Prefix = "",
    first: Annotated[
        int | None,
        typer.Option("--from", metavar="INDEX", min=0, help="First index.", show_default="now"),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop after this many changes.")
    ] = None,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    group: Group = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Print changes of keys as they happen, until Ctrl-C: index, put or del, key, value."""
    target = find_target(directory, servers, group, timeout, context)
    flush_every_line()

    async def watch(kv: KV) -> None:
        left = count
        if first is not None and first > (applied := await kv.applied_index()):
            print_note(f"waiting for index {first}: the machine has applied {applied}")
        async with aclosing(kv.watch(os.fsencode(prefix), first)) as events:
            async for event in events:
                _print_event(event, as_json)
                left = None if left is None else left - 1
                if left == 0:
                    return

    _run(target, watch)


# -- shared ---------------------------------------------------------------------------------------


def _run(target: Target, work: Callable[[KV], Awaitable[T]]) -> T:
    async def run() -> T:
        async with Client(target.cluster, target.group, timeout_ms=target.timeout_ms) as client:
            return await work(KV(client))

    return asyncio.run(run())


def _print_previous(value: bytes | None, as_json: bool) -> None:
    if as_json:
        print_json({"previous_base64": None if value is None else _base64(value)})
    else:
        print_line("there was none before" if value is None else f"before: {printable(value)}")


def _print_item(item: KeyItem, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "key_base64": _base64(item.key),
                "value_base64": _base64(item.value),
                "index": item.index,
            }
        )
    else:
        print_line(f"{printable(item.key)} {printable(item.value)}")


def _print_event(event: KeyEvent, as_json: bool) -> None:
    value = event.value
    if as_json:
        print_json(
            {
                "index": event.index,
                "key_base64": _base64(event.key),
                "value_base64": None if value is None else _base64(value),
            }
        )
    elif value is None:
        print_line(f"{event.index:>8}  del {printable(event.key)}")
    else:
        print_line(f"{event.index:>8}  put {printable(event.key)} {printable(value)}")


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")
