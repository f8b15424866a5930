"""`quorumlog context`: names for clusters, each with where it is and who one is there."""

import os
import re
import tempfile
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import typer

from quorumlog.cli.errors import CommandError
from quorumlog.cli.options import AsJson
from quorumlog.cli.output import print_json, print_line, print_note, print_table
from quorumlog.client.contexts import (
    Context,
    Contexts,
    absolute,
    contexts_of,
    contexts_path,
    read_contexts,
    renamed,
)
from quorumlog.client.outgoing_tls import outgoing_tls
from quorumlog.model.config import parse_address
from quorumlog.model.errors import ConfigError

_DEFAULT_LINE: Final = re.compile(r"^default\s*=.*$", re.MULTILINE)
_TABLE: Final = re.compile(r"^\s*\[", re.MULTILINE)
_OPTIONS: Final = {"clusterId": "--cluster-id", "verifyName": "--verify-name"}
"""The options by which keys of a context are given."""
_UNASKED: Final = "-"
"""In the place of a password that would be asked for."""

app = typer.Typer(
    help="Names for clusters: where each is, how it is trusted, and who you are there. Commands "
    "take one by --context NAME. They are in ~/.config/quorumlog/contexts.toml.",
    no_args_is_help=True,
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")]


def _option(flag: str, text: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(flag, help=text, show_default=False)
    return found


@app.command(name="list")
def list_command(as_json: AsJson = False) -> None:
    """Show all contexts."""
    found = read_contexts(contexts_path())
    if not found.path.exists():
        print_note(f"{found.path} is not there yet: 'quorumlog context add' makes it")
    if as_json:
        for name, context in found.by_name.items():
            print_json(_object(found, name, context))
        return
    rows = [
        [name, "yes" if name == found.default else "", one.servers, one.kafka, _security(one)]
        for name, one in found.by_name.items()
    ]
    print_table(["CONTEXT", "DEFAULT", "SERVERS", "KAFKA", "SECURITY"], rows)


@app.command(name="show")
def show_command(name: Name, as_json: AsJson = False) -> None:
    """Show a context: addresses, names of files, and no secret."""
    found = read_contexts(contexts_path())
    shown = _object(found, name, found.named(name))
    if as_json:
        print_json(shown)
        return
    print_table(["KEY", "VALUE"], [[key, str(value)] for key, value in shown.items()])


@app.command(name="use")
def use_command(name: Name) -> None:
    """Make a context the default one, for commands that are told no other."""
    found = read_contexts(contexts_path())
    found.named(name)
    text = found.path.read_text()
    line = f"default = {_quoted(name)}"
    first = _TABLE.search(text)
    head, tail = (text, "") if first is None else (text[: first.start()], text[first.start() :])
    if _DEFAULT_LINE.search(head):
        head = _DEFAULT_LINE.sub(lambda _: line, head, count=1)
    else:
        head = f"{line}\n{head}"
    _write(found.path, head + tail)
    print_line(f"context {name} is the default")


@app.command(name="add")
def add_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    name: Name,
    servers: Annotated[str, _option("--servers", "Addresses of some nodes.")] = "",
    kafka: Annotated[str, _option("--kafka", "Addresses of some brokers (kafkaListen).")] = "",
    ca: Annotated[str, _option("--ca", "File of the authorities; system: the machine's.")] = "",
    certificate: Annotated[str, _option("--certificate", "File of your certificate.")] = "",
    key: Annotated[str, _option("--key", "File of its private key.")] = "",
    cluster_id: Annotated[str, _option("--cluster-id", "Speak to this cluster only.")] = "",
    verify_name: Annotated[
        Literal["", "host", "cluster"],
        _option("--verify-name", "What certificates of nodes name: host, or cluster."),
    ] = "",
    mechanism: Annotated[str, _option("--mechanism", "Of the login, by SASL.")] = "",
    user: Annotated[str, _option("--user", "Who logs in.")] = "",
    password_file: Annotated[str, _option("--password-file", "File with the password.")] = "",
    password_env: Annotated[
        str, _option("--password-env", "Variable of the environment that has it.")
    ] = "",
    token_file: Annotated[str, _option("--token-file", "File with a token of OAUTHBEARER.")] = "",
) -> None:
    """Add a context. Secrets stay in files of their own, which nobody else may read."""
    if not servers and not kafka:
        raise typer.BadParameter("give --servers, --kafka, or both")
    given = Context(
        servers=servers,
        kafka=kafka,
        cluster_id=cluster_id,
        ca=ca,
        certificate=certificate,
        key=key,
        mechanism=mechanism,
        user=user,
        password_file=password_file,
        password_env=password_env,
        token_file=token_file,
        verify_name=verify_name,
    )
    for address in f"{servers},{kafka}".split(","):
        if address.strip():
            parse_address(address.strip())
    context = absolute(given, Path.cwd())
    try:
        _check(context)
    except ConfigError as error:
        raise CommandError(renamed(str(error), _OPTIONS)) from None
    found = read_contexts(contexts_path())
    if name in found.by_name:
        raise CommandError(f"there is a context {name} already, in {found.path}; change it there")
    lines = [f"{key} = {_quoted(value)}" for key, value in _keys(context).items()]
    before = found.path.read_text() if found.path.exists() else ""
    gap = "\n" if before and not before.endswith("\n\n") else ""
    text = "\n".join([f"[contexts.{_quoted(name)}]", *lines, ""])
    _write(found.path, f"{before}{gap}{text}")
    print_line(f"context {name} is in {found.path}")
    if not found.default:
        use = f"'quorumlog context use {name}' makes it the default"
        print_note(f"{use}, for commands without --context")


@app.command(name="remove")
def remove_command(name: Name) -> None:
    """Remove a context. Files that it names stay."""
    found = read_contexts(contexts_path())
    found.named(name)
    is_default = name == found.default
    text = _without(found.path.read_text(), name, is_default=is_default)
    left = {key: one for key, one in found.by_name.items() if key != name}
    try:
        after = contexts_of(text.encode(), found.path)
    except ConfigError:
        after = None
    if after is None or (dict(after.by_name), after.default) != (
        left,
        "" if is_default else found.default,
    ):
        raise CommandError(
            f"nothing is changed: context {name} is not a table of its own in {found.path}; "
            "remove it there"
        )
    _write(found.path, text)
    print_line(f"context {name} is removed{'; there is no default now' if is_default else ''}")


def _without(text: str, name: str, *, is_default: bool) -> str:
    """Return a file without the table of a context; what stands before the next one stays."""
    kept: list[str] = []
    skipped: list[str] | None = None
    for line in text.splitlines(keepends=True):
        if _TABLE.match(line):
            kept += _comments_at_the_end(skipped or [])
            skipped = [] if _is_of(line, name) else None
        if skipped is None:
            kept.append(line)
        else:
            skipped.append(line)
    kept += _comments_at_the_end(skipped or [])
    head, first = "".join(kept), _TABLE.search("".join(kept))
    head, tail = (head, "") if first is None else (head[: first.start()], head[first.start() :])
    return (_DEFAULT_LINE.sub("", head, count=1) if is_default else head) + tail


def _comments_at_the_end(lines: list[str]) -> list[str]:
    """Return the comments at the end of a table that is removed: they are about the next one."""
    begin = len(lines)
    while begin and lines[begin - 1].startswith("#"):
        begin -= 1
    return lines[begin:]


def _is_of(header: str, name: str) -> bool:
    """Whether a line is the head of the table of a context."""
    try:
        return bool(msgspec.toml.decode(header) == {"contexts": {name: {}}})
    except msgspec.DecodeError:
        return False


def _check(context: Context) -> None:
    """Raise `ConfigError` unless the files are there and what they say goes together."""
    environment = {context.password_env: os.environ.get(context.password_env) or _UNASKED}
    security = context.open(environment=environment, ask=lambda _: _UNASKED).security
    if security is not None:
        outgoing_tls(security)


def _keys(context: Context) -> dict[str, str]:
    """Return the keys of a context as the file has them."""
    found: dict[str, str] = msgspec.to_builtins(context)
    return found


def _object(found: Contexts, name: str, context: Context) -> dict[str, object]:
    return {"context": name, "default": name == found.default, **_keys(context)}


def _security(context: Context) -> str:
    """Return how a cluster is spoken to, in a word or two."""
    if not context.is_secure:
        return "plain"
    who = context.user or context.token_file or context.certificate
    return f"TLS, {who}" if who else "TLS"


def _quoted(text: str) -> str:
    """Return a text as TOML has it; its escapes are among those of JSON."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")


def _write(path: Path, text: str) -> None:
    """Replace the file by one that only its user can read. Raises `ConfigError`, `OSError`."""
    try:
        contexts_of(text.encode(), path)
    except ConfigError as error:
        raise CommandError(f"nothing is changed: {error}") from None
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    target = path.resolve()  # a link stays one
    number, beside = tempfile.mkstemp(dir=target.parent, prefix=f"{target.name}.")  # mode 0600
    try:
        with open(number, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException:
        os.unlink(beside)
        raise
