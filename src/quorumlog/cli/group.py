"""`quorumlog group`: make, list, describe, alter and delete groups while nodes run."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from quorumlog.cli.errors import CommandError
from quorumlog.cli.options import (
    TIMEOUT_SECONDS,
    AsJson,
    ContextName,
    FromDir,
    Servers,
    Timeout,
    check_once,
    pairs_of,
)
from quorumlog.cli.output import (
    BAD_STYLE,
    QUIET_STYLE,
    print_json,
    print_line,
    print_note,
    print_table,
)
from quorumlog.cli.target import find_servers
from quorumlog.client import Client, SyncClient
from quorumlog.client.group_answers import GroupChange, GroupSummary, summaries
from quorumlog.local import LocalCluster
from quorumlog.log_events import describe_error
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import check_name
from quorumlog.model.errors import QuorumlogError, RequestError
from quorumlog.model.group_records import OF_NEW_REPLICAS
from quorumlog.model.messages.groups import Setting
from quorumlog.model.wording import counted

AT_A_TIME = 32
"""Groups that are made or deleted at the same time."""
CREATE_SECONDS = 60.0
DELETED = "DELETED"
REPORT_SECONDS = 2.0
"""Pause between two reports of how far it has come."""
_SOURCES = {"runtime": "run time"}
"""What tables call where a group, or a value of it, is from, if not as JSON and messages do."""

app = typer.Typer(
    help="Groups of a cluster: create, list, describe, alter and delete them while nodes run.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]
Names = Annotated[list[str], typer.Argument(metavar="GROUP", help="Names of the groups.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A key of a group's configuration and its value; repeatable.",
        show_default=False,
    ),
]

Identity = Annotated[
    str,
    typer.Option("--identity", help="Which of several groups of one name.", show_default=False),
]


@app.command(name="create")
def create_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    groups: Names,
    members: Annotated[
        str | None,
        typer.Option(
            "--members",
            metavar="NODE,...",
            help="Ids of the nodes that shall have them.",
            show_default="the nodes with the fewest groups",
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option("--replicas", min=1, help="How many nodes that is.", show_default="3"),
    ] = None,
    settings: Set = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="A group that exists is no failure.")
    ] = False,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    timeout: Timeout = CREATE_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Make groups; return once each has a leader.

    All members of a new group must be up. If one of them refuses, nothing of that group stays.
    """
    for group in groups:
        check_name("group", group)
    values = _settings(settings)
    chosen = [node_id.strip() for node_id in members.split(",")] if members else None
    found = find_servers(directory, servers, context)
    if directory is not None:
        values = {**LocalCluster.open(directory).group_settings(), **values}

    async def create_all() -> dict[str, str]:
        async with Client(found, timeout_ms=timeout * 1000) as client:

            async def create(name: str) -> None:
                try:
                    made = await client.admin.groups.create(
                        name, members=chosen, replicas=replicas, settings=values, timeout_s=timeout
                    )
                except RequestError as error:
                    if error.code is not ResponseCode.GROUP_EXISTS or not if_not_exists:
                        raise
                    print_note(f"there is a group {name} already; nothing is changed")
                    return
                _print_made(made, as_json=as_json, quiet=len(groups) > AT_A_TIME)

            return await _each(groups, create)

    _finish(asyncio.run(create_all()), groups, "made")


def _print_made(made: GroupSummary, *, as_json: bool, quiet: bool) -> None:
    members = ", ".join(made.members)
    if as_json:
        print_json(_object(made))
    elif not quiet:
        print_line(f"group {made.group} on {members}; leader {made.leader_id}")


async def _each(names: Sequence[str], work: Callable[[str], Awaitable[None]]) -> dict[str, str]:
    """Do something for every name, some at a time; return what went wrong, by name."""
    slots, failures, done = asyncio.Semaphore(AT_A_TIME), dict[str, str](), 0
    reported = time.monotonic()

    async def one(name: str) -> None:
        nonlocal done, reported
        async with slots:
            try:
                await work(name)
            except Exception as error:  # whatever it is, the other groups are not given up for it
                is_said = isinstance(error, QuorumlogError)
                failures[name] = str(error) if is_said else describe_error(error)
            done += 1
            if time.monotonic() - reported >= REPORT_SECONDS:
                reported = time.monotonic()
                print_note(f"{done} of {len(names)}")

    await asyncio.gather(*map(one, dict.fromkeys(names)))
    return failures


def _finish(failures: Mapping[str, str], names: Sequence[str], what: str) -> None:
    """Report what was done. Raises `CommandError` if something was not."""
    count = len(set(names))
    if len(names) > AT_A_TIME:
        print_line(f"{counted(count - len(failures), 'group')} {what}")
    if count == 1 and failures:
        raise CommandError(next(iter(failures.values())))
    for name, text in failures.items():
        print_note(f"{name}: {text}")
    if failures:
        raise CommandError(f"{len(failures)} of {counted(count, 'group')} not {what}")


def _check_answered(silent: Mapping[str, str]) -> None:
    """Report the nodes that did not answer. Raises `CommandError` if there are any."""
    for node, reason in silent.items():
        print_note(f"{node}: {reason}")
    if silent:
        many = counted(len(silent), "node does", "nodes do")
        raise CommandError(f"{many} not answer; groups that only they know are not shown")


def _settings(pairs: list[str] | None) -> dict[str, str]:
    return pairs_of(pairs, "retentionBytes=1000000")


@app.command(name="list")
def list_command(
    deleted: Annotated[
        bool, typer.Option("--deleted", help="Also those that were deleted lately.")
    ] = False,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show all groups of the cluster: members, leader, and what was set while nodes ran."""
    with SyncClient(find_servers(directory, servers, context), timeout_ms=timeout * 1000) as client:
        nodes = client.admin.groups.nodes(deleted=deleted)
    found = summaries(nodes)
    if as_json:
        for one in found:
            print_json(_object(one))
    else:
        _print_groups(found)
        _print_problems(found)
    _check_answered({node.node_id or node.address: node.error for node in nodes if node.error})


def _print_groups(summaries: Sequence[GroupSummary]) -> None:
    former = [one for one in summaries if set(one.states.values()) == {DELETED}]
    found = [one for one in summaries if one not in former]
    print_table(
        ["GROUP", "MEMBERS", "LEADER", ">TERM", ">END", "FROM", "SETTINGS"],
        [
            [
                one.group,
                ", ".join(one.members or one.states),
                _leader_cell(one),
                "-" if one.term < 0 else str(one.term),
                "-" if one.end_index < 0 else str(one.end_index),
                "file" if one.is_from_file else _SOURCES["runtime"],
                " ".join(f"{key}={value}" for key, value in one.settings.items()),
            ]
            for one in found
        ],
    )
    if former:
        print_line("")
        print_table(
            ["DELETED GROUP", "IDENTITY", "REMEMBERED BY", "DELETED AT", "FILES"],
            [
                [
                    one.group,
                    one.identity,
                    ", ".join(one.states),
                    datetime.fromtimestamp(one.deleted_ms / 1000)
                    .astimezone()
                    .isoformat(" ", "seconds"),
                    Text("removed", QUIET_STYLE) if one.purged else "kept",
                ]
                for one in former
            ],
        )


def _print_problems(summaries: Sequence[GroupSummary]) -> None:
    for one in summaries:
        for node, text in one.problems.items():
            print_note(f"{one.group}: {node}, {one.states[node]}: {text}")


def _leader_cell(one: GroupSummary) -> Text:
    if one.leader_id is None:
        return Text("none", BAD_STYLE)
    return Text(one.leader_id)


def _object(one: GroupSummary) -> dict[str, object]:
    return {
        "group": one.group,
        "identity": one.identity,
        "members": one.members,
        "leader": one.leader_id,
        "term": one.term,
        "end_index": one.end_index,
        "states": one.states,
        "problems": one.problems,
        "from_file": one.is_from_file,
        "settings": one.settings,
        "deleted_ms": one.deleted_ms or None,
        "purged": one.purged if one.deleted_ms else None,
    }


@app.command(name="describe")
def describe_command(
    group: Name,
    only_set: Annotated[
        bool, typer.Option("--set-only", help="Only keys that do not have their default.")
    ] = False,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show the effective configuration of a group: values, and where they are from.

    Nodes whose configuration files differ have their values beside each other.
    """
    with SyncClient(find_servers(directory, servers, context), timeout_ms=timeout * 1000) as client:
        summary, by_node = client.admin.groups.describe(group)
    keys = {one.key: one for settings in by_node.values() for one in settings}
    values = {  # a node that cannot use the group's file, or of another version, may lack some
        key: {node: one for node, settings in by_node.items() for one in settings if one.key == key}
        for key in keys
    }
    if as_json:
        print_json({**_object(summary), "configuration": _configuration(keys, values)})
    else:
        _print_settings(summary, keys, values, only_set=only_set)
        _print_problems([summary])
    _check_answered(summary.silent)


def _print_settings(
    summary: GroupSummary,
    keys: dict[str, Setting],
    values: dict[str, dict[str, Setting]],
    *,
    only_set: bool,
) -> None:
    identity = summary.identity or "none yet"
    print_line(f"group {summary.group}, identity {identity}, leader {summary.leader_id or 'none'}")
    print_table(
        ["KEY", "VALUE", "FROM", "DEFAULT", "TAKES EFFECT"],
        [
            [
                key,
                _value_text({node: _value_of(one) for node, one in at.items()}),
                "/".join(sorted({_SOURCES.get(one.source, one.source) for one in at.values()})),
                keys[key].default,
                _applies_text(at),
            ]
            for key, at in values.items()
            if not only_set or any(one.source != "default" for one in at.values())
        ],
    )


def _configuration(
    keys: dict[str, Setting], values: dict[str, dict[str, Setting]]
) -> dict[str, object]:
    return {
        key: {
            "default": keys[key].default,
            "applies": keys[key].applies,
            "nodes": {
                node: {"value": one.value, "source": one.source, "running": one.running}
                for node, one in at.items()
            },
        }
        for key, at in values.items()
    }


def _value_of(one: Setting) -> str:
    """Return a value; of what only new replicas take, that of the files there are as well."""
    if one.applies != "new" or one.value == one.running:
        return one.value
    return f"{one.running} (its files; new ones: {one.value})"


def _value_text(by_node: dict[str, str]) -> str:
    if len(set(by_node.values())) == 1:
        return next(iter(by_node.values()))
    return ", ".join(f"{node}: {value}" for node, value in by_node.items())


def _applies_text(at: dict[str, Setting]) -> str:
    applies = next(iter(at.values())).applies
    waiting = [node for node, one in at.items() if one.value != one.running]
    if waiting and applies != "new":
        return f"after a restart of {', '.join(waiting)}"
    texts = {
        "now": "now",
        "restart": "after restart",
        "new": "for new replicas",
        "never": "never",
    }
    return texts.get(applies, "?")


@app.command(name="alter")
def alter_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    group: Name,
    settings: Set = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            "--unset",
            metavar="KEY",
            help="Give a key back the value of the configuration file, or its default; repeatable.",
            show_default=False,
        ),
    ] = None,
    identity: Identity = "",
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
) -> None:
    """Change the configuration of a group on all its members while they run."""
    if not settings and not unset:
        raise typer.BadParameter("give --set KEY=VALUE or --unset KEY")
    values = _settings(settings)
    check_once([*values, *(unset or ())])
    with SyncClient(find_servers(directory, servers, context), timeout_ms=timeout * 1000) as client:
        changed = client.admin.groups.alter(group, values, unset=unset or (), identity=identity)
    print_line(f"group {group} is altered on {', '.join(changed.nodes)}")
    _print_rest(group, changed)
    of_files = sorted(OF_NEW_REPLICAS & {*values, *(unset or ())})
    if of_files:
        print_note(f"counts for new replicas, as files keep their size: {', '.join(of_files)}")
    if changed.after_restart:
        print_note(f"counts after a restart of the nodes: {', '.join(changed.after_restart)}")


def _print_rest(group: str, changed: GroupChange) -> None:
    for node, reason in changed.pending.items():
        print_note(
            f"{group}: {node} has not done it yet, and learns of it from the others: {reason}"
        )
    for node, text in changed.notes.items():
        print_note(f"{group}: {node}: {text}")


@app.command(name="delete")
def delete_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    groups: Names,
    purge: Annotated[
        bool,
        typer.Option(
            "--purge",
            help="Remove the files now; otherwise after deletedGroupReservedHours. Also of groups "
            "that are deleted already.",
        ),
    ] = False,
    identity: Identity = "",
    force: Annotated[
        bool,
        typer.Option("--force", help="Also if no majority of its members answers."),
    ] = False,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
) -> None:
    """Delete groups permanently, with everything in them.

    A member that does not answer deletes its replica once it hears of it from another.
    """
    found = find_servers(directory, servers, context)

    async def delete_all() -> dict[str, str]:
        async with Client(found, timeout_ms=timeout * 1000) as client:

            async def delete(name: str) -> None:
                changed = await client.admin.groups.delete(
                    name, purge=purge, identity=identity, force=force
                )
                if len(groups) <= AT_A_TIME:
                    print_line(f"group {name} is deleted on {', '.join(changed.nodes)}")
                _print_rest(name, changed)

            return await _each(groups, delete)

    _finish(asyncio.run(delete_all()), groups, "deleted")
