"""`quorumlog acl suggest`: the ACLs that would allow what audit logs say would be refused."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple

import typer
from msgspec.structs import astuple

from quorumlog.auth.acls import (
    ANY_HOST,
    CLUSTER,
    OPERATIONS,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    checked_acl,
    word_of,
)
from quorumlog.auth.certificates import ANONYMOUS
from quorumlog.auth.principals import USER
from quorumlog.auth.rules import allows
from quorumlog.cli.acl import object_of
from quorumlog.cli.audit_log import Directory, Files, lines_of
from quorumlog.cli.options import AsJson
from quorumlog.cli.output import print_json, print_line, print_note
from quorumlog.model.audit_events import AuditedEvent
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.wording import counted
from quorumlog.service.authorization import (
    AUDITED_KINDS,
    ONLY_REPORTED,
    audited_operation,
    is_of_brokers,
)

_KINDS: Final = {word: kind for kind, word in AUDITED_KINDS.items()}
_OPERATIONS: Final = {audited_operation(one): one for one in Operation}
_NO_ACL: Final = "no ACL gives it: groups of the brokers are read as topics, by Kafka's protocol"
_UNCLEAR: Final = "what it is about cannot be told: too many kinds at once, or a name was cut"


class Suggestions:
    """What would allow what was asked for. `left_out`: why something has no suggestion → events."""

    def __init__(self) -> None:
        self.seen: Counter[Acl] = Counter()
        self.left_out: Counter[str] = Counter()

    def take(self, line: Mapping[str, Any]) -> None:
        """Take a line of an audit log, if it is about a right that only was reported missing."""
        if line.get("event") != AuditedEvent.REQUEST_REFUSED:
            return
        times = int(line.get("n", 1))
        if not line.get("resource"):  # a sum of many kinds
            self.left_out[_UNCLEAR] += times
            return
        if line.get("reason") != ONLY_REPORTED:
            return
        found = _acl_of(line)
        if isinstance(found, str):
            self.left_out[found] += times
        else:
            self.seen[found] += times

    def acls(self) -> list[Acl]:
        """Return what is needed, in order; what another of these ACLs implies is not."""
        by_place: dict[tuple[object, ...], list[Acl]] = {}
        for one in self.seen:
            by_place.setdefault((one.principal, one.resource_type, one.name), []).append(one)
        needed = [
            one
            for there in by_place.values()
            for one in there
            if not any(other is not one and allows(other, one.operation) for other in there)
        ]
        return sorted(needed, key=astuple)


def _acl_of(line: Mapping[str, Any]) -> Acl | str:
    """Return the ACL that gives the right that a line is about, or why there is none."""
    principal, (word, _, name) = (
        str(line["principal"]),
        str(line.get("resource", "")).partition(":"),
    )
    kind, operation = _KINDS.get(word), _OPERATIONS.get(str(line.get("operation", "")))
    if kind is None or operation is None or operation not in OPERATIONS[kind]:
        return _UNCLEAR
    if not principal.startswith(USER):
        return f"{principal} is no user"
    user = principal.removeprefix(USER)
    if _is_changed(user) or user.startswith(USER):  # which the command takes for a principal
        return f"the command line has no word for user {user}"
    if kind is ResourceType.GROUP and is_of_brokers(name):
        return _NO_ACL
    if kind is not CLUSTER.type and (_is_changed(name) or name.endswith("*")):
        # the latter is a prefix for the command
        return f"the command line has no word for {word} {name}"
    acl = Acl(kind, name, PatternType.LITERAL, principal, ANY_HOST, operation, Permission.ALLOW)
    try:
        return checked_acl(acl)
    except UnexpectedArgumentError as error:
        return str(error)


def _is_changed(name: str) -> bool:
    """Whether a name may be another one than what the log has for it.

    The log cuts long names, and has escapes for what is not printable: these are not the name.
    """
    return name.endswith("…") or "\\" in name or not name.isprintable()


class _Command(NamedTuple):
    """An `acl add` that stands for several ACLs: each operation on each resource."""

    principal: str
    operations: tuple[Operation, ...]
    resources: list[tuple[ResourceType, str]]

    def words(self) -> list[str]:
        found = ["quorumlog", "acl", "add", "--user", self.principal.removeprefix(USER)]
        for operation in self.operations:
            found += ["--operation", word_of(operation)]
        for kind, name in self.resources:
            found += ["--cluster"] if kind is CLUSTER.type else [f"--{word_of(kind)}", name]
        return found


def _commands(acls: Iterable[Acl]) -> Iterator[_Command]:
    """Yield as few commands as add these ACLs and no other."""
    operations: dict[tuple[str, ResourceType, str], list[Operation]] = {}
    for one in acls:
        place = one.principal, one.resource_type, one.name
        operations.setdefault(place, []).append(one.operation)
    commands: dict[tuple[str, ResourceType, tuple[Operation, ...]], _Command] = {}
    for (principal, kind, name), some in operations.items():
        key = principal, kind, tuple(some)
        command = commands.setdefault(key, _Command(principal, tuple(some), []))
        command.resources.append((kind, name))
    yield from commands.values()


Since = Annotated[
    str,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Only what was asked for from then on, as audit logs write it (UTC): "
        "2026-11-29T12:00 or a part of it.",
        show_default=False,
    ),
]


def suggest_command(
    directory: Directory = None,
    files: Files = None,
    since: Since = "",
    as_json: AsJson = False,
) -> None:
    """Print the commands that would allow what only was reported (authorization = "log").

    They are what audit logs say: give those of all nodes. Names are literal: where many share a
    beginning, one ACL for it may be what is meant. Read the commands before you run them: not
    everything that somebody asks for is theirs to have.
    """
    found = Suggestions()
    for line in lines_of(directory, files):
        if str(line.get("at", "")) >= since:
            found.take(line)
    acls = found.acls()
    if as_json:
        for one in acls:
            print_json({**object_of(one), "n": found.seen[one]})
    else:
        for command in _commands(acls):
            comment = "# not logged in: " if command.principal == ANONYMOUS else ""
            print_line(comment + shlex.join(command.words()))
    for reason, count in sorted(found.left_out.items()):
        print_note(f"{counted(count, 'request')} left out: {reason}")
    if not acls and not found.left_out:
        print_note(
            "nothing would be refused, as far as these audit logs go: nodes with "
            'authorization = "log" write what would be; what was refused is there by '
            "'quorumlog audit-log --event request-refused'"
        )
