"""The command as a whole: its families, and how their errors are reported."""

import io
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Final

import typer

from quorumlog.cli.acl import app as acl_app
from quorumlog.cli.acl_suggest import suggest_command
from quorumlog.cli.append import append_command
from quorumlog.cli.audit_log import audit_log_command
from quorumlog.cli.bench import bench_command
from quorumlog.cli.broker_config import app as broker_config_app
from quorumlog.cli.cert import app as cert_app
from quorumlog.cli.cluster import app as cluster_app
from quorumlog.cli.command_families import AllCommands
from quorumlog.cli.consumer_group import app as consumer_group_app
from quorumlog.cli.context import app as context_app
from quorumlog.cli.demo import demo_command
from quorumlog.cli.errors import EXIT_BEYOND_END, EXIT_FAILED, BeyondEndError
from quorumlog.cli.group import app as group_app
from quorumlog.cli.kv import app as kv_app
from quorumlog.cli.members import app as members_app
from quorumlog.cli.members import transfer_command, watch_leader_command
from quorumlog.cli.pipeline import app as pipeline_app
from quorumlog.cli.quota import app as quota_app
from quorumlog.cli.read import get_command, tail_command
from quorumlog.cli.serve import serve_command
from quorumlog.cli.simulate import simulate_command
from quorumlog.cli.snapshot import snapshot_command
from quorumlog.cli.status import status_command
from quorumlog.cli.store import app as store_app
from quorumlog.cli.topic import app as topic_app
from quorumlog.cli.transaction import app as transaction_app
from quorumlog.cli.user import app as user_app
from quorumlog.log_events import reason_of
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import IndexOutOfRangeError, QuorumlogError, RequestError
from quorumlog.model.wording import printable_text
from quorumlog.transport.standard_streams import fill_standard_streams

_SHOWN_BY: Final = {
    ResponseCode.UNKNOWN_GROUP: "quorumlog group list",
    ResponseCode.UNKNOWN_MEMBER: "quorumlog members list",
    ResponseCode.UNKNOWN_USER: "quorumlog user list",
}
"""Commands that show the names there are, by the codes of errors about a name that is unknown."""

app = typer.Typer(
    name="quorumlog",
    cls=AllCommands,
    help="A Raft-replicated commit log: run nodes, append, read, look inside.",
    epilog="Exit status 0: done. 1: it failed, and standard error says why. 2: the command line is "
    "wrong. 3: the index asked for lies beyond the end of the log. 130: interrupted with Ctrl-C.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(name="serve")(serve_command)
app.add_typer(cluster_app, name="cluster")
app.add_typer(cert_app, name="cert")
app.command(name="append")(append_command)
app.command(name="get")(get_command)
app.command(name="tail")(tail_command)
app.command(name="status")(status_command)
app.add_typer(kv_app, name="kv")
app.command(name="snapshot")(snapshot_command)
app.add_typer(group_app, name="group")
app.add_typer(topic_app, name="topic")
app.add_typer(consumer_group_app, name="consumer-group")
app.add_typer(transaction_app, name="transaction")
app.add_typer(broker_config_app, name="broker-config")
app.add_typer(user_app, name="user")
acl_app.command(name="suggest")(suggest_command)
app.add_typer(acl_app, name="acl")
app.add_typer(quota_app, name="quota")
app.add_typer(members_app, name="members")
app.command(name="transfer")(transfer_command)
app.command(name="watch-leader")(watch_leader_command)
app.command(name="audit-log")(audit_log_command)
app.add_typer(store_app, name="store")
app.add_typer(pipeline_app, name="pipeline")
app.add_typer(context_app, name="context")
app.command(name="simulate")(simulate_command)
app.command(name="bench")(bench_command)
app.command(name="demo")(demo_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"quorumlog {version('quorumlog')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


def _set_up_streams() -> None:
    """What is printed has somewhere to go; a closed standard input stays None."""
    fill_standard_streams()
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "wb", closefd=False), encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "wb", closefd=False), encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a poor locale must not end a command


def _next_step(error: Exception) -> str:
    """Return what to add to an error, if a command shows the names there are."""
    code = error.code if isinstance(error, RequestError) else None
    command = _SHOWN_BY.get(code) if code is not None else None
    return f" ('{command}' shows those there are)" if command else ""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (default: those of the process); return its exit status."""
    _set_up_streams()
    try:
        app(None if arguments is None else list(arguments), prog_name="quorumlog")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else EXIT_FAILED
    except (QuorumlogError, OSError) as error:
        said = reason_of(error) if isinstance(error, OSError) else error
        lines = f"quorumlog: {said}{_next_step(error)}".split("\n")
        print(*map(printable_text, lines), sep="\n", file=sys.stderr)
        is_beyond = isinstance(error, BeyondEndError | IndexOutOfRangeError)
        return EXIT_BEYOND_END if is_beyond else EXIT_FAILED
    return 0
