"""`quorumlog acl`: who may do what."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final

import msgspec
import typer

from quorumlog.auth.acls import (
    ANY_HOST,
    ANY_NAME,
    CLUSTER,
    OPERATIONS,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    host_text,
    new_acl,
    value_of,
    word_of,
)
from quorumlog.auth.principals import ANY_USER, EVERYBODY, principal_of, user_name
from quorumlog.auth.roles import OF_CHOSEN, ON_CLUSTER, ROLES, Pattern, acls_of_role
from quorumlog.cli.errors import EXIT_FAILED
from quorumlog.cli.options import TIMEOUT_SECONDS, AsJson, ContextName, FromDir, Servers, Timeout
from quorumlog.cli.output import print_json, print_line, print_note, print_table
from quorumlog.cli.security_target import cluster_client, without_prefix
from quorumlog.client import SyncClient
from quorumlog.model.errors import NotAuthorizedError
from quorumlog.model.security_config import NOT_LOGGED_IN
from quorumlog.model.wording import counted

app = typer.Typer(
    help="Rights: who may do what with which topics, groups, consumer groups.",
    no_args_is_help=True,
)

User = Annotated[
    str | None,
    typer.Option(
        "--user",
        metavar="USER",
        help="Name of the user; '*': all.",
        show_default=False,
        callback=without_prefix,
    ),
]
OneUser = Annotated[
    str, typer.Option("--user", metavar="USER", help="Name of the user.", callback=without_prefix)
]
Operations = Annotated[
    list[str] | None,
    typer.Option(
        "--operation",
        metavar="NAME",
        help="What may be done: read, write, create, delete, alter, describe, describe-configs, "
        "alter-configs, idempotent-write, cluster-action, or all; repeatable.",
        show_default=False,
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="NAME",
        help="A topic; 'flights*' is all whose names begin so, '*' all; repeatable.",
        show_default=False,
    ),
]
Groups = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        "-g",
        metavar="NAME",
        help="A group of quorumlog: a log, or a state machine; repeatable.",
        show_default=False,
    ),
]
ConsumerGroups = Annotated[
    list[str] | None,
    typer.Option(
        "--consumer-group", metavar="NAME", help="A consumer group; repeatable.", show_default=False
    ),
]
TransactionalIds = Annotated[
    list[str] | None,
    typer.Option(
        "--transactional-id",
        metavar="NAME",
        help="A transactional id; repeatable.",
        show_default=False,
    ),
]
OnCluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Deny = Annotated[bool, typer.Option("--deny", help="Deny it, whatever others allow.")]
Host = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="ADDRESS",
        help="Only from this address, or network such as 10.1.0.0/16.",
        show_default=False,
    ),
]
Roles = Annotated[
    list[str] | None,
    typer.Option(
        "--role",
        metavar="ROLE",
        help="What is often wanted together: reader and writer (of what is named), operator, "
        "monitor, admin (of the whole cluster); repeatable.",
        show_default=False,
    ),
]


def _patterns(
    topics: Sequence[str] | None,
    groups: Sequence[str] | None,
    consumer_groups: Sequence[str] | None,
    transactional_ids: Sequence[str] | None,
    *,
    on_cluster: bool,
) -> list[Pattern]:
    """Return the resources that options name. A name that ends with `*` is a prefix."""
    named: Mapping[ResourceType, Sequence[str] | None] = {
        ResourceType.TOPIC: topics,
        ResourceType.GROUP: groups,
        ResourceType.CONSUMER_GROUP: consumer_groups,
        ResourceType.TRANSACTIONAL_ID: transactional_ids,
    }
    found = [_pattern(kind, name) for kind, names in named.items() for name in names or ()]
    return [*found, ON_CLUSTER] if on_cluster else found


_PLAIN_NAMES: Final = (ResourceType.TOPIC, ResourceType.GROUP)
"""Resources whose names have no `*`; consumer groups and transactional ids may have any text."""


def _pattern(kind: ResourceType, name: str) -> Pattern:
    if kind in _PLAIN_NAMES and "*" in name[:-1]:
        raise typer.BadParameter(
            f"{name!r}: only a * at the end stands for something, for all names that begin so; no "
            f"{word_of(kind)} has a * in its name"
        )
    if name.endswith("*") and name != ANY_NAME:
        return Pattern(kind, name.removesuffix("*"), PatternType.PREFIXED)
    return Pattern(kind, name)


def _principal(user: str) -> str:
    return ANY_USER if user == EVERYBODY else principal_of(user)


@app.command(name="add")
def add_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    user: OneUser,
    operations: Operations = None,
    roles: Roles = None,
    topics: Topics = None,
    groups: Groups = None,
    consumer_groups: ConsumerGroups = None,
    transactional_ids: TransactionalIds = None,
    on_cluster: OnCluster = False,
    deny: Deny = False,
    host: Host = None,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Add ACLs: each operation on each resource, or roles. '*' for a user is everybody."""
    patterns = _patterns(topics, groups, consumer_groups, transactional_ids, on_cluster=on_cluster)
    if (not roles) == (not operations):
        raise typer.BadParameter("give either --operation or --role")
    who, where = _principal(user), host or ANY_HOST
    if roles:
        if deny:
            raise typer.BadParameter("a role allows: give --operation with --deny")
        acls = _of_roles(roles, who, patterns, where)
    else:
        acls = list(_single(who, operations or (), patterns, where, deny=deny))
    acls = [new_acl(one) for one in acls]
    with cluster_client(directory, servers, context, timeout) as client:
        client.security.add_acls(acls)
        is_user = user in (EVERYBODY, NOT_LOGGED_IN) or _is_user(client, user)
    _print(acls, as_json=as_json)
    if not is_user:
        print_note(
            f"no user {user} has a password here: the ACLs count for one who shows "
            "a certificate or a token, or is added later ('quorumlog user list' shows those there "
            "are)"
        )
    if roles and "reader" in roles and topics and not consumer_groups:
        print_note("consumers that share topics also need --consumer-group NAME")


def _of_roles(
    roles: Sequence[str], principal: str, patterns: Sequence[Pattern], host: str = ANY_HOST
) -> list[Acl]:
    """Return the ACLs of roles: each of readers and writers for the resources that it is for.

    Raises `UnexpectedArgumentError` for a resource that none of them is for, for a role that none
    of the resources is for, and for one that is not known.
    """
    found: dict[Acl, None] = {}
    chosen = [role for role in roles if role in OF_CHOSEN]
    kinds = {kind for role in chosen for kind in ROLES[role]}
    are_all_used = all(one.type in kinds for one in patterns)
    for role in roles:
        own = [one for one in patterns if one.type in ROLES.get(role, ())]
        if role not in OF_CHOSEN and chosen:
            own = []
        elif not (own and are_all_used):
            own = list(patterns)  # the error says what is wrong
        found |= dict.fromkeys(acls_of_role(role, principal, own, host))
    return list(found)


def _is_user(client: SyncClient, name: str) -> bool:
    """Whether somebody has this name; also if those who may add ACLs may not list users."""
    try:
        return user_name(name) in {one.name for one in client.security.users()}
    except NotAuthorizedError:
        return True


def _single(
    principal: str,
    operations: Sequence[str],
    patterns: Sequence[Pattern],
    host: str,
    *,
    deny: bool,
) -> Iterator[Acl]:
    """Yield an ACL for each operation on each resource."""
    if not patterns:
        raise typer.BadParameter(
            "name what it is about: --topic, --group, --consumer-group, --transactional-id or "
            "--cluster"
        )
    permission = Permission.DENY if deny else Permission.ALLOW
    for word in operations:
        operation = value_of(Operation, word)
        for kind, name, pattern in patterns:
            if operation not in OPERATIONS[kind]:
                known = ", ".join(word_of(one) for one in sorted(OPERATIONS[kind]))
                raise typer.BadParameter(
                    f"there is no operation {word} on a {word_of(kind)}; there are {known}"
                )
            yield Acl(kind, name, pattern, principal, host, operation, permission)


@app.command(name="list")
def list_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    user: User = None,
    operations: Operations = None,
    topics: Topics = None,
    groups: Groups = None,
    consumer_groups: ConsumerGroups = None,
    transactional_ids: TransactionalIds = None,
    on_cluster: OnCluster = False,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show ACLs: all, or those of a user, or about what is named.

    --topic flights shows all that are about this topic, also those for 'fl*' and for '*';
    --topic 'fl*' shows those for this prefix.
    """
    patterns = _patterns(topics, groups, consumer_groups, transactional_ids, on_cluster=on_cluster)
    filters = _filters(user, operations, patterns, PatternType.MATCH)
    with cluster_client(directory, servers, context, timeout) as client:
        found = dict.fromkeys(acl for one in filters for acl in client.security.acls(one))
    _print(list(found), as_json=as_json)


def _filters(
    user: str | None,
    operations: Sequence[str] | None,
    patterns: Sequence[Pattern],
    of_literals: PatternType,
) -> list[AclFilter]:
    """Return filters for all that options name; `of_literals`: how names without `*` are meant."""
    principal = None if user is None else _principal(user)
    asked = [value_of(Operation, word) for word in operations or ()] or [Operation.ANY]
    named = [
        AclFilter(
            kind,
            name,
            pattern if pattern is PatternType.PREFIXED or name == ANY_NAME else of_literals,
            principal,
        )
        for kind, name, pattern in patterns
    ]
    return [
        msgspec.structs.replace(one, operation=operation)
        for one in named or [AclFilter(principal=principal)]
        for operation in asked
    ]


@app.command(name="remove")
def remove_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    user: User = None,
    operations: Operations = None,
    roles: Roles = None,
    topics: Topics = None,
    groups: Groups = None,
    consumer_groups: ConsumerGroups = None,
    transactional_ids: TransactionalIds = None,
    on_cluster: OnCluster = False,
    host: Host = None,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Remove ACLs: all of a user, all for a topic or prefix, those of roles; show them.

    Names are meant as they are: --topic flights removes nothing that is for 'fl*'. Without --host
    it does not matter for which addresses they are.
    """
    patterns = _patterns(topics, groups, consumer_groups, transactional_ids, on_cluster=on_cluster)
    if roles:
        if user is None or operations:
            raise typer.BadParameter("a role is taken from a --user, as a whole")
        filters = [_exactly(one) for one in _of_roles(roles, _principal(user), patterns)]
    elif user is None and not operations and not patterns:
        raise typer.BadParameter("say which: --user, --operation, or what they are about")
    else:
        filters = _filters(user, operations, patterns, PatternType.LITERAL)
    if host is not None:
        filters = [msgspec.structs.replace(one, host=host_text(host)) for one in filters]
    with cluster_client(directory, servers, context, timeout) as client:
        removed = [acl for one in filters for acl in client.security.remove_acls(one)]
    _print(removed, as_json=as_json)
    if not as_json:
        print_note(f"{counted(len(removed), 'ACL')} removed")


def _exactly(acl: Acl) -> AclFilter:
    """Return what means an ACL and those that differ from it by their host alone."""
    return AclFilter(
        acl.resource_type,
        acl.name,
        acl.pattern,
        acl.principal,
        operation=acl.operation,
        permission=acl.permission,
    )


@app.command(name="check")
def check_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    user: OneUser,
    operation: Annotated[
        str, typer.Option("--operation", metavar="NAME", help="What would be done, such as read.")
    ],
    topics: Topics = None,
    groups: Groups = None,
    consumer_groups: ConsumerGroups = None,
    transactional_ids: TransactionalIds = None,
    on_cluster: OnCluster = False,
    host: Annotated[
        str | None,
        typer.Option("--host", metavar="ADDRESS", help="From where.", show_default="not known"),
    ] = None,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Say whether a user may do something, and by which ACL. Exit status 1: not allowed."""
    patterns = _patterns(topics, groups, consumer_groups, transactional_ids, on_cluster=on_cluster)
    if len(patterns) != 1 or patterns[0].pattern is PatternType.PREFIXED:
        raise typer.BadParameter("name one thing, such as --topic flights")
    resource = CLUSTER if on_cluster else Resource(patterns[0].type, patterns[0].name)
    asked = value_of(Operation, operation)
    with cluster_client(directory, servers, context, timeout) as client:
        found = client.security.check(principal_of(user), asked, resource, host=host or "")
    if as_json:
        acl = None if found.acl is None else object_of(found.acl)
        print_json({"allowed": found.is_allowed, "reason": found.reason, "acl": acl})
    else:
        print_line(f"{'allowed' if found.is_allowed else 'not allowed'}: {_reason(found.reason)}")
    if not found.is_allowed:
        raise typer.Exit(EXIT_FAILED)


def _reason(reason: str) -> str:
    """Return a reason without the word that the line begins with."""
    for word in ("allowed by: ", "denied by: "):
        reason = reason.removeprefix(word)
    return reason


_COLUMNS: Final = ["USER", "MAY", "OPERATION", "RESOURCE", "NAME", "HOST"]


def _print(acls: Sequence[Acl], *, as_json: bool) -> None:
    if as_json:
        for one in acls:
            print_json(object_of(one))
        return
    print_table(
        _COLUMNS,
        [
            [
                one.principal.partition(":")[2],
                word_of(one.permission),
                word_of(one.operation),
                word_of(one.resource_type),
                f"{one.name}*" if one.pattern is PatternType.PREFIXED else one.name,
                one.host,
            ]
            for one in acls
        ],
    )


def object_of(acl: Acl) -> dict[str, object]:
    """Return an ACL as `--json` shows it."""
    return {
        "principal": acl.principal,
        "permission": word_of(acl.permission),
        "operation": word_of(acl.operation),
        "resource_type": word_of(acl.resource_type),
        "name": acl.name,
        "pattern": word_of(acl.pattern),
        "host": acl.host,
    }
