"""`quorumlog consumer-group`: list, describe, reset and delete groups, by Kafka's protocol.

Options have the names of those of Kafka's own `kafka-consumer-groups`; its actions are subcommands
here, and names of groups are arguments.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import typer

from quorumlog.cli.errors import CommandError
from quorumlog.cli.group_descriptions import (
    CONSUMER,
    DEAD,
    described_groups,
    is_log,
    log_bounds,
)
from quorumlog.cli.kafka_admin import (
    PASSING,
    RETRY_S,
    TIMEOUT_SECONDS,
    Bootstrap,
    KafkaAdmin,
    Timeout,
    in_words,
    kafka_admin,
)
from quorumlog.cli.options import AsJson, ContextName, FromDir
from quorumlog.cli.output import print_json, print_line, print_note, print_table
from quorumlog.cli.unknown_names import CONSUMER_GROUP, TOPIC, none_of, none_of_each
from quorumlog.model.wording import counted, printable_text

Place: TypeAlias = tuple[str, int]
"""A topic, or a log that a group reads instead, and the number of a partition of it."""

SHOWN_BY: Final = "quorumlog consumer-group describe"
UNKNOWN_OFFSET: Final = -1
"""What brokers say if no record has a timestamp, or a later one."""
_OK: Final = "OK"
_NOT_FOUND: Final = "GroupIdNotFoundError"
_NOT_EMPTY: Final = "NonEmptyGroupError"
NAMED_MAX: Final = 5
"""Members of a group that are named in an error, at most."""
MEMBER_COLUMNS: Final = {
    "MEMBER": "member_id",
    "INSTANCE": "group_instance_id",
    "EPOCH": "member_epoch",
    "CLIENT": "client_id",
    "HOST": "client_host",
}
"""What the table shows of members, if any has it, by the names in their descriptions."""
LEADERS_S: Final = 5.0
"""So long is waited for leaders of partitions: an election takes less."""

app = typer.Typer(
    help="Consumer groups of a cluster: list, describe, reset and delete them.",
    no_args_is_help=True,
)

Groups = Annotated[list[str], typer.Argument(metavar="GROUP...", help="Names of the groups.")]


class Share(NamedTuple):
    """A partition that a group has committed an offset of, or that a member owns.

    `committed` None: nothing is. `end` is the high watermark, or that of a log the index after its
    last entry; None: no leader said it.
    """

    topic: str
    partition: int
    committed: int | None
    end: int | None
    member: Mapping[str, Any] | None

    @property
    def lag(self) -> int | None:
        """How many offsets the group has still to come to; None: not known.

        Of a log it is a bound: some indexes are no entries of users, or are in other partitions.
        """
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


@app.command(name="list")
def list_command(
    directory: FromDir = None,
    bootstrap_server: Bootstrap = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show all consumer groups, with their types and states.

    The type is the protocol by which members share partitions: Classic, or Consumer (KIP-848).
    """
    with kafka_admin(directory, bootstrap_server, context, timeout, SHOWN_BY) as admin:
        groups = admin.ask(lambda client: client.list_groups())
    found = sorted(groups, key=lambda one: str(one["group_id"]))
    if as_json:
        for one in found:
            print_json(
                {
                    "group": one["group_id"],
                    "type": one.get("group_type"),
                    "state": one["group_state"],
                    "protocol_type": one["protocol_type"],
                }
            )
        return
    rows = [[one["group_id"], _type_of(one), one["group_state"]] for one in found]
    print_table(["GROUP", "TYPE", "STATE"], rows)


def _type_of(group: Mapping[str, Any]) -> str:
    """Return the type of a group as Kafka's own tool writes it; "-": an older broker says none."""
    return (group.get("group_type") or "-").capitalize()


@app.command(name="describe")
def describe_command(
    groups: Groups,
    directory: FromDir = None,
    bootstrap_server: Bootstrap = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show who owns which partition, what is committed, and how far that is from the end."""
    with kafka_admin(directory, bootstrap_server, context, timeout, SHOWN_BY) as admin:
        described = admin.ask(partial(_described, names=list(dict.fromkeys(groups))))
        shares = {
            name: admin.ask(partial(_shares, group=name, described=found))
            for name, found in described.items()
        }
        unknown = [name for name, found in shares.items() if _is_unknown(described[name], found)]
        failure = none_of(admin, CONSUMER_GROUP, unknown) if unknown else ""
    for name, found in shares.items():
        if name not in unknown:
            (_print_json if as_json else _print)(name, described[name], found)
    if failure:
        raise CommandError(failure)


def _described(client: Any, *, names: Sequence[str]) -> Any:
    return described_groups(client, names)


def _shares(admin: Any, *, group: str, described: Mapping[str, Any]) -> list[Share]:
    """Return a group's partitions in order."""
    from kafka import TopicPartition  # noqa: PLC0415  (see kafka_admin)
    from kafka.admin import OffsetSpec  # noqa: PLC0415

    committed = {  # brokers take any offset of a commit; one below 0 is told as -1, and is none
        place: found.offset
        for place, found in admin.list_group_offsets([group])[group].items()
        if found.offset >= 0
    }
    owners = {
        TopicPartition(each["topic"], number): member
        for member in described["members"]
        for each in _assigned(member)
        for number in each["partitions"]
    }
    places = sorted({*committed, *owners})
    logs = log_bounds(admin, {place.topic for place in places if is_log(place.topic)})
    led = _led(admin, {place.topic for place in places if not is_log(place.topic)})
    asked = dict.fromkeys((place for place in places if place in led), OffsetSpec.LATEST)
    found = admin.list_partition_offsets(asked) if asked else {}
    ends = {place: one.offset for place, one in found.items() if one.offset >= 0}
    ends |= {place: logs[place.topic][1] for place in places if place.topic in logs}
    return [
        Share(
            place.topic,
            place.partition,
            committed.get(place),
            ends.get(place),
            owners.get(place),
        )
        for place in places
    ]


def _led(admin: Any, topics: Collection[str]) -> set[Place]:
    """Return the partitions of some topics that have leaders, which alone know their ends."""
    return {
        (one["name"], each["partition_index"])
        for one in (admin.describe_topics(sorted(topics)) if topics else ())
        for each in one["partitions"]
        if each["leader_id"] >= 0
    }


def _assigned(member: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return what a member owns; nothing while the group rebalances, or of another protocol."""
    assignment = member["member_assignment"]
    return assignment.get("assigned_partitions", ()) if isinstance(assignment, Mapping) else ()


def _is_unknown(described: Mapping[str, Any], shares: Sequence[Share]) -> bool:
    return bool(described["group_state"] == DEAD and not shares)


def _lag(shares: Iterable[Share]) -> int:
    """Return the sum of the lags that are known."""
    return sum(one.lag or 0 for one in shares)


def _print_json(name: str, described: Mapping[str, Any], shares: Sequence[Share]) -> None:
    print_json(
        {
            "group": name,
            "type": described["group_type"],
            "state": described["group_state"],
            "assignor": described["protocol_data"],
            "epoch": described.get("group_epoch"),
            "assignment_epoch": described.get("assignment_epoch"),
            "lag": None if any(one.lag is None for one in shares) else _lag(shares),
            "members": [
                {
                    "member_id": one["member_id"],
                    "instance_id": one["group_instance_id"],
                    "client_id": one["client_id"],
                    "host": one["client_host"],
                    "epoch": one.get("member_epoch"),
                }
                for one in described["members"]
            ],
            "partitions": [
                {
                    "topic": one.topic,
                    "partition": one.partition,
                    "committed": one.committed,
                    "end": one.end,
                    "lag": one.lag,
                    "member_id": None if one.member is None else one.member["member_id"],
                }
                for one in shares
            ],
        }
    )


def _print(name: str, described: Mapping[str, Any], shares: Sequence[Share]) -> None:
    lags = [one.lag for one in shares]
    known = [one for one in lags if one is not None]
    unknown = len(lags) - len(known)
    parts = [f"{described['group_state']}, {counted(len(described['members']), 'member')}"]
    if known and not unknown:
        parts.append(f"lag {_lag(shares)}")
    elif unknown and not known:
        parts.append("lag not known")
    print_line(f"consumer group {name}: {', '.join(parts)}")
    print_line(f"  {_protocol_text(described)}")
    if known and unknown:
        where = f"without the {counted(unknown, 'partition')} where it is not known"
        print_line(f"  lag {_lag(shares)} {where}")
    columns = [
        name for name in MEMBER_COLUMNS if any(_of(each, name) for each in described["members"])
    ]
    rows = [
        [
            one.topic,
            str(one.partition),
            *("-" if cell is None else str(cell) for cell in (one.committed, one.end, one.lag)),
            *(_of(one.member, name) or "-" for name in columns),
        ]
        for one in shares
    ]
    owners = {one.member["member_id"] for one in shares if one.member is not None}
    for member in described["members"]:
        if member["member_id"] not in owners:  # it stands by
            rows.append([*"-----", *(_of(member, name) or "-" for name in columns)])
    print_table(["TOPIC", ">PARTITION", ">COMMITTED", ">LOG END OFFSET", ">LAG", *columns], rows)


def _protocol_text(described: Mapping[str, Any]) -> str:
    """Return by which protocol a group shares partitions, and which assignor."""
    text = f"{described['group_type']} protocol"
    if described["group_type"] == CONSUMER:
        text += f", epoch {described['group_epoch']}"
    assignor = described["protocol_data"]
    return f"{text}, assignor {assignor}" if assignor else text


def _of(member: Mapping[str, Any] | None, column: str) -> str:
    """Return what a column shows of a member; "": it has none."""
    value = None if member is None else member.get(MEMBER_COLUMNS[column])
    return "" if value is None else str(value)


# -- reset ----------------------------------------------------------------------------------------


OfTopics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="TOPIC[:PARTITION,...]",
        help="Of this topic, or of these partitions of it; repeatable. "
        "Otherwise all that the group has committed.",
        show_default=False,
    ),
]
ToEarliest = Annotated[bool, typer.Option("--to-earliest", help="To the log start offset.")]
ToLatest = Annotated[bool, typer.Option("--to-latest", help="To the end.")]
ToOffset = Annotated[
    int | None, typer.Option("--to-offset", min=0, help="To an offset.", show_default=False)
]
ToDatetime = Annotated[
    datetime | None,
    typer.Option(
        "--to-datetime",
        formats=[
            "%Y-%m-%d",
            *(f"%Y-%m-%dT%H:%M:%S{part}{zone}" for part in ("", ".%f") for zone in ("", "%z")),
        ],
        metavar="DATE|DATETIME",
        help="To the first record that is as new, by its timestamp: 2026-01-31, "
        "2026-01-31T08:00:00 (local time), 2026-01-31T08:00:00Z; Z may be a zone such as +0100, "
        "and seconds may have fractions.",
        show_default=False,
    ),
]
ShiftBy = Annotated[
    int | None,
    typer.Option(
        "--shift-by", help="By a number of offsets from what is committed.", show_default=False
    ),
]


@app.command(name="reset")
def reset_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")],
    topic: OfTopics = None,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_offset: ToOffset = None,
    to_datetime: ToDatetime = None,
    shift_by: ShiftBy = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be committed.")
    ] = False,
    directory: FromDir = None,
    bootstrap_server: Bootstrap = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Commit other offsets for a group that has no members, within what its partitions have."""
    target = _target(to_earliest, to_latest, to_offset, to_datetime, shift_by)
    with kafka_admin(directory, bootstrap_server, context, timeout, SHOWN_BY) as admin:
        described = admin.ask(partial(_described, names=[group]))[group]
        shares = admin.ask(partial(_shares, group=group, described=described))
        is_new = _is_unknown(described, shares)
        if is_new and not topic:
            raise CommandError(none_of(admin, CONSUMER_GROUP, [group]))
        if described["members"]:
            why = "stop them first, as they would commit their own offsets"
            raise CommandError(_has_members(group, described["members"], why))
        now = {(one.topic, one.partition): one.committed for one in shares}
        places = _places(admin, topic, list(now), group) if topic else list(now)
        wanted = {place: target(place, now.get(place)) for place in places}
        _wait_led(admin, places)
        targets = admin.ask(partial(_resolved, wanted=wanted))
        if not dry_run:
            admin.ask(partial(_commit, group=group, targets=targets))
    if is_new:
        print_note(
            f"there was no consumer group {group!r}; it {'would be' if dry_run else 'is'} made"
        )
    _print_reset([(place, now.get(place), at) for place, at in sorted(targets.items())], as_json)
    if dry_run:
        print_note("nothing is changed, as --dry-run was given")


def _target(
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: datetime | None,
    shift_by: int | None,
) -> Callable[[Place, int | None], Any]:
    """Return what says where to reset to, given a partition and what is committed of it."""
    from kafka.admin import OffsetSpec, OffsetTimestamp  # noqa: PLC0415  (see kafka_admin)

    def shifted(place: Place, now: int | None) -> int:
        if now is None:
            text = f"nothing is committed of {place[0]} {place[1]}, so it cannot be shifted"
            raise CommandError(text)
        return now + (shift_by or 0)

    ways: list[Any] = [OffsetSpec.EARLIEST] * to_earliest + [OffsetSpec.LATEST] * to_latest
    ways += [] if to_offset is None else [to_offset]
    ways += [] if to_datetime is None else [OffsetTimestamp(round(to_datetime.timestamp() * 1e3))]
    if len(ways) + (shift_by is not None) != 1:
        raise typer.BadParameter(
            "give one of --to-earliest, --to-latest, --to-offset, --to-datetime and --shift-by"
        )
    return shifted if shift_by is not None else lambda place, now: ways[0]


def _places(
    admin: KafkaAdmin, topics: Iterable[str], known: Collection[Place], group: str
) -> list[Place]:
    """Return the partitions that `--topic` names. Raises `CommandError` for unknown ones.

    `known`: those that the group has; of a log there are no others.
    """
    wanted: dict[str, list[int] | None] = {}
    places: list[Place] = []
    for text in topics:
        if is_log(text):
            places += _places_in_log(text, known, group)
            continue
        name, separator, numbers = text.partition(":")
        try:
            wanted[name] = [int(one) for one in numbers.split(",")] if separator else None
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not TOPIC or TOPIC:0,1") from None
    names = list(wanted)
    described = admin.ask(lambda client: client.describe_topics(names)) if names else ()
    found = {one["name"]: one for one in described}
    unknown = [name for name in names if found[name]["error_code"]]
    if unknown:
        raise CommandError(none_of(admin, TOPIC, unknown))
    for name, given in wanted.items():
        count = len(found[name]["partitions"])
        beyond = [one for one in given or () if not 0 <= one < count]
        if beyond:
            raise CommandError(f"topic {name} has no partition {beyond[0]}; it has {count}")
        places += [(name, one) for one in (range(count) if given is None else given)]
    return places


def _places_in_log(text: str, known: Collection[Place], group: str) -> list[Place]:
    """Return the partitions of a log that `--topic` names as log:NAME or log:NAME:0,1."""
    found = [place for place in known if text in (place[0], f"{place[0]}:{place[1]}")]
    for name in {name for name, _ in known if text.startswith(f"{name}:")}:
        numbers = text.removeprefix(f"{name}:").split(",")
        found = [place for place in known if place[0] == name and str(place[1]) in numbers]
    if not found:
        what = f"the group has committed nothing of {text}"
        raise CommandError(f"{what} ('{SHOWN_BY} {group}' shows what it has committed)")
    return found


def _wait_led(admin: KafkaAdmin, places: Collection[Place]) -> None:
    """Wait until partitions have leaders, for as long as an election takes.

    Raises `CommandError` for those that have none then.
    """
    ends_at = time.monotonic() + LEADERS_S
    while True:
        topics = {name for name, _ in places if not is_log(name)}
        led = {place for place in places if is_log(place[0])}
        led |= admin.ask(partial(_led, topics=topics))
        without = [place for place in places if place not in led]
        if not without:
            return
        if admin.is_over or time.monotonic() >= ends_at:
            raise CommandError(_without_leader(without, [one for one in places if one in led]))
        time.sleep(RETRY_S)


def _without_leader(without: Iterable[Place], led: Iterable[Place]) -> str:
    """Return what to do about partitions that have no leader, beside those that have one."""
    missing = "; ".join(
        f"topic {name} has no leader of {'partition' if len(numbers) == 1 else 'partitions'} "
        f"{', '.join(map(str, numbers))}"
        for name, numbers in _by_topic(without).items()
    )
    others = " ".join(
        f"--topic {name}:{','.join(map(str, numbers))}" for name, numbers in _by_topic(led).items()
    )
    choice = f", or choose the others only: {others}" if others else ""
    return f"nothing is changed: {missing}; start the nodes that have them{choice}"


def _by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, number in sorted(places):
        found.setdefault(name, []).append(number)
    return found


def _resolved(admin: Any, *, wanted: Mapping[Place, Any]) -> dict[Place, int]:
    """Return the offset of each partition, within what it has. Raises `CommandError`."""
    from kafka import TopicPartition  # noqa: PLC0415  (see kafka_admin)
    from kafka.admin import OffsetSpec  # noqa: PLC0415

    logs = {place: target for place, target in wanted.items() if is_log(place[0])}
    resolved = _resolved_in_logs(admin, logs)
    targets = {
        TopicPartition(*place): target for place, target in wanted.items() if place not in logs
    }
    if not targets:
        return resolved
    asked = {place: at for place, at in targets.items() if type(at) is not int}
    starts = admin.list_partition_offsets(dict.fromkeys(targets, OffsetSpec.EARLIEST))
    ends = admin.list_partition_offsets(dict.fromkeys(targets, OffsetSpec.LATEST))
    found = admin.list_partition_offsets(asked) if asked else {}
    for place, target in targets.items():
        at = found[place].offset if place in asked else target
        start, end = starts[place].offset, ends[place].offset
        where = f"{place.topic} {place.partition}"
        if place in asked and at == UNKNOWN_OFFSET:
            print_note(f"{where}: no record is as new; to the end, {end}")
            at = end
        resolved[place.topic, place.partition] = _within(where, at, start, end)
    return resolved


def _resolved_in_logs(admin: Any, wanted: Mapping[Place, Any]) -> dict[Place, int]:
    """Return the index of each partition of a log, within what the log has."""
    from kafka.admin import OffsetSpec  # noqa: PLC0415  (see kafka_admin)

    bounds = log_bounds(admin, {name for name, _ in wanted})
    resolved = {}
    for place, target in wanted.items():
        if place[0] not in bounds:
            raise CommandError(f"no broker has a replica of {place[0]}; start the nodes that have")
        start, end = bounds[place[0]]
        known = {OffsetSpec.EARLIEST: start, OffsetSpec.LATEST: end}
        if type(target) is not int and target not in known:
            raise CommandError(f"{place[0]}: entries of a log are not found by time")
        at = target if type(target) is int else known[target]
        resolved[place] = _within(f"{place[0]} {place[1]}", at, start, end)
    return resolved


def _within(where: str, at: int, start: int, end: int) -> int:
    """Return an offset, or the nearest one that the partition has."""
    if not start <= at <= end:
        side, nearest = ("before the log start", start) if at < start else ("beyond the end", end)
        print_note(f"{where}: {at} is {side}; to offset {nearest}")
    return min(max(at, start), end)


def _commit(admin: Any, *, group: str, targets: Mapping[Place, int]) -> None:
    from kafka import OffsetAndMetadata, TopicPartition  # noqa: PLC0415  (see kafka_admin)

    offsets = {
        TopicPartition(*place): OffsetAndMetadata(at, "", -1) for place, at in targets.items()
    }
    for place, error in admin.alter_group_offsets(group, offsets).items():
        if error.__name__ in PASSING:
            raise error  # it is asked again: the same offsets may be committed twice
        if error.errno:
            what = f"{place.topic} {place.partition}: {in_words(error.__name__)}"
            raise CommandError(f"not reset: {what}; '{SHOWN_BY} {group}' shows what is committed")


def _print_reset(rows: Iterable[tuple[Place, int | None, int]], as_json: bool) -> None:
    if as_json:
        for (name, number), before, after in rows:
            print_json({"topic": name, "partition": number, "before": before, "committed": after})
        return
    cells = [
        [name, str(number), *("-" if cell is None else str(cell) for cell in offsets)]
        for (name, number), *offsets in rows
    ]
    print_table(["TOPIC", ">PARTITION", ">BEFORE", ">NEW OFFSET"], cells)


@app.command(name="delete")
def delete_command(
    groups: Groups,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="A group that does not exist is no failure.")
    ] = False,
    directory: FromDir = None,
    bootstrap_server: Bootstrap = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Delete groups that have no members, with what they have committed."""
    with kafka_admin(directory, bootstrap_server, context, timeout, SHOWN_BY) as admin:
        answers = _deleted(admin, list(dict.fromkeys(groups)))
        busy = [name for name, answer in answers.items() if answer == _NOT_EMPTY]
        described = admin.ask(partial(_described, names=busy)) if busy else {}
        unknown = [name for name, answer in answers.items() if answer == _NOT_FOUND]
        absent = {} if if_exists else none_of_each(admin, CONSUMER_GROUP, unknown)
    failed = 0
    for name, answer in answers.items():
        if answer == _OK:
            print_json({"group": name}) if as_json else print_line(f"group {name} is deleted")
        elif answer == _NOT_FOUND and if_exists:
            print_note(f"there is no consumer group {name!r}; nothing is changed")
        else:
            failed += 1
            print_note(absent.get(name) or _why_not_deleted(name, answer, described.get(name)))
    if failed:
        raise CommandError(f"{failed} of {counted(len(answers), 'group')} not deleted")


def _deleted(admin: KafkaAdmin, names: Sequence[str]) -> dict[str, str]:
    """Delete groups; return what was answered of each."""
    from kafka import errors  # noqa: PLC0415  (see kafka_admin)

    answers: dict[str, str] = {}

    def delete(client: Any) -> None:
        left = [name for name in names if name not in answers or answers[name] in PASSING]
        answers.update(client.delete_groups(left))
        for name in left:
            if answers[name] in PASSING:
                raise getattr(errors, answers[name])

    try:
        admin.ask(delete)
    except errors.KafkaError as error:
        if type(error).__name__ not in PASSING or not answers:
            raise
    return answers


def _why_not_deleted(name: str, answer: str, described: Mapping[str, Any] | None) -> str:
    if described is not None and described["members"]:
        return _has_members(name, described["members"], "stop them first")
    return f"{name}: {in_words(answer)}"


def _has_members(group: str, members: Sequence[Mapping[str, Any]], advice: str) -> str:
    """Return that a group has members, and who they are."""
    named = [_member_text(one) for one in members[:NAMED_MAX]]
    if len(members) > NAMED_MAX:
        named.append(f"{len(members) - NAMED_MAX:,} more")
    return (
        f"consumer group {printable_text(group)} has {counted(len(members), 'member')} "
        f"({', '.join(named)}): "
        f"{advice}; one that was killed goes by itself once its session time-out is over"
    )


def _member_text(member: Mapping[str, Any]) -> str:
    instance = member["group_instance_id"]
    text = f"{member['client_id']} at {member['client_host']}"
    return printable_text(f"{text} as {instance}" if instance else text)
