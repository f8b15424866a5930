"""`quorumlog user`: who can log in with a password."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from quorumlog.auth.acls import AclFilter
from quorumlog.auth.principals import principal_of
from quorumlog.auth.verifiers import ITERATIONS, MECHANISMS
from quorumlog.cli.options import TIMEOUT_SECONDS, AsJson, ContextName, FromDir, Servers, Timeout
from quorumlog.cli.output import print_json, print_line, print_note, print_table
from quorumlog.cli.passwords import PasswordFile, new_password
from quorumlog.cli.security_target import cluster_client, without_prefix
from quorumlog.cli.target import find_access
from quorumlog.client import Context
from quorumlog.model.wording import counted

app = typer.Typer(
    help="Users that log in with a password: add, list, passwd, remove.", no_args_is_help=True
)

Name = Annotated[
    str,
    typer.Argument(
        metavar="USER", help="Name of the user, such as alice.", callback=without_prefix
    ),
]
Mechanism = Annotated[
    list[str] | None,
    typer.Option(
        "--mechanism",
        metavar="NAME",
        help="How the user may log in; repeatable.",
        show_default=", ".join(MECHANISMS),
    ),
]
Iterations = Annotated[
    int,
    typer.Option(
        "--iterations",
        metavar="NUMBER",
        min=1,
        help="How long a guess of the password takes: 4096 to 1000000.",
    ),
]


@app.command(name="add")
def add_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    user: Name,
    password_file: PasswordFile = None,
    mechanism: Mechanism = None,
    iterations: Iterations = ITERATIONS,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
) -> None:
    """Add a user. What is sent is made of the password, and does not tell it."""
    with cluster_client(directory, servers, context, timeout) as client:
        password = new_password(password_file, user)
        client.security.add_user(
            user, password, mechanisms=mechanism or tuple(MECHANISMS), iterations=iterations
        )
        print_line(f"user {user} is added")
        left = client.security.acls(AclFilter(principal=principal_of(user)))
    if left:
        print_note(
            f"{counted(len(left), 'ACL')} for {user} were there already"
            + _hint(f"list --user {quote(user)}", "shows them")
        )
    else:
        print_note(f"{user} has no rights yet" + _hint(f"add --user {quote(user)} …", "gives some"))


def _hint(command: str, effect: str) -> str:
    """Return what a command of `quorumlog acl` does, to be added to a note.

    There is none if a name in it is not printable: with escapes, it would be that of another user.
    """
    return f" ('quorumlog acl {command}' {effect})" if command.isprintable() else ""


@app.command(name="passwd")
def passwd_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    user: Name,
    password_file: PasswordFile = None,
    mechanism: Mechanism = None,
    iterations: Iterations = ITERATIONS,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
) -> None:
    """Give a user another password. The old one counts no more, by whatever mechanism."""
    with cluster_client(directory, servers, context, timeout) as client:
        password = new_password(password_file, user)
        client.security.change_password(
            user, password, mechanisms=mechanism or tuple(MECHANISMS), iterations=iterations
        )
    print_line(f"user {user} has another password")
    own = _own_context(directory, servers, context)
    if own is not None and own.user == user:
        where = own.password_file or own.password_env
        if where:
            print_note(f"the context that was used still has the former one: change {where}, too")


def _own_context(
    directory: Path | None, servers: str | None, context: str | None
) -> Context | None:
    """Return the context that a command is run with; None: addresses were given."""
    return find_access(directory, servers, context).found() if directory is None else None


@app.command(name="remove")
def remove_command(
    user: Name,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
) -> None:
    """Remove a user. Its ACLs stay until they are removed, too."""
    with cluster_client(directory, servers, context, timeout) as client:
        client.security.remove_user(user)
        print_line(f"user {user} is removed")
        left = client.security.acls(AclFilter(principal=principal_of(user)))
    if left:
        print_note(
            f"{counted(len(left), 'ACL')} for {user} are left: whoever gets this "
            "name has them" + _hint(f"remove --user {quote(user)}", "removes them")
        )


@app.command(name="list")
def list_command(
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show the users, and by which mechanisms they may log in."""
    with cluster_client(directory, servers, context, timeout) as client:
        found = client.security.users()
    if as_json:
        for one in found:
            print_json({"user": one.name, "iterations": dict(one.iterations)})
        return
    print_table(
        ["USER", "MECHANISM", ">ITERATIONS"],
        [
            [one.name, mechanism, str(count)]
            for one in found
            for mechanism, count in one.iterations.items()
        ],
    )
