"""`quorumlog cert`: certificates for clusters whose operators have no authority of their own."""

import secrets
import shlex
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from quorumlog.cli.options import AsJson
from quorumlog.cli.output import print_line, print_note
from quorumlog.model.wording import counted

if TYPE_CHECKING:
    from quorumlog.pki.authority import AuthorityDirectory, Made

CERTS: Final = Path("certs")
DAYS_MAX: Final = 36_500
AUTHORITY_DAYS: Final = 3_650
CERTIFICATE_DAYS: Final = 365
CRL_DAYS: Final = 30

app = typer.Typer(
    help="Make, renew, revoke and check certificates, with an authority of your own.",
    no_args_is_help=True,
)

Dir = Annotated[
    Path, typer.Option("--dir", "-d", help="Directory of the certificate authority (ca.pem).")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", metavar="DIR", help="Where to write them.", show_default="that of --dir"
    ),
]
Days = Annotated[
    int, typer.Option("--days", min=1, max=DAYS_MAX, help="It is valid for this long.")
]
CrlDays = Annotated[
    int,
    typer.Option(
        "--days", min=1, max=DAYS_MAX, help="The next revocation list is due after this time."
    ),
]
KeyTypeWord = Annotated[
    Literal["ec-p256", "ed25519"], typer.Option("--key-type", help="Kind of key.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace files that are there.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        "-H",
        metavar="HOST",
        help="Host name or IP address by which clients reach the node; repeatable.",
        show_default=False,
    ),
]
NewHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        "-H",
        metavar="HOST",
        help="In place of the hosts that the certificate of a node names: all of them; repeatable.",
        show_default="as they are",
    ),
]
_NAME: Final = partial(typer.Argument, metavar="NAME")
NodeName = Annotated[str, _NAME(help="Name of the node: the selfId of its configuration.")]
UserName = Annotated[str, _NAME(help="Name of the user.")]
AnyName = Annotated[str, _NAME(help="Name of the node or user.")]


def _authority(directory: Path) -> "AuthorityDirectory":
    from quorumlog.pki.authority import AuthorityDirectory

    return AuthorityDirectory(directory, datetime.now(UTC), secrets.token_bytes)


@app.command(name="ca")
def ca_command(
    directory: Dir = CERTS,
    cluster_id: Annotated[
        str,
        typer.Option(
            "--cluster-id",
            metavar="ID",
            help="For a further authority of a cluster that has one, to replace that one.",
            show_default="a new cluster",
        ),
    ] = "",
    days: Days = AUTHORITY_DAYS,
    key_type: KeyTypeWord = "ec-p256",
    force: Force = False,
) -> None:
    """Make the certificate authority of a cluster, and the id of the cluster with it.

    Whoever has its key (ca.key) can make certificates of any node and user: keep it where no node
    runs.
    """
    from quorumlog.pki.names import checked_cluster_id, new_cluster_id

    authority = _authority(directory)
    wanted = checked_cluster_id(cluster_id) if cluster_id else new_cluster_id(secrets.token_bytes)
    made = authority.make(wanted, key_type, days, force=force)
    print_line(f"made {authority.pair.certificate}, for all nodes and clients,")
    print_line(f"and {authority.pair.key}, which stays here and which nobody else may read")
    print_line(f"cluster {made.cluster_id}, until {made.certificate.not_valid_after_utc:%Y-%m-%d}")


@app.command(name="node")
def node_command(
    name: NodeName,
    hosts: Hosts = None,
    directory: Dir = CERTS,
    out: Out = None,
    days: Days = CERTIFICATE_DAYS,
    key_type: KeyTypeWord = "ec-p256",
    force: Force = False,
) -> None:
    """Make key and certificate of a node: NAME is the selfId of its configuration.

    Other nodes know it by that name; clients check that it names the host that they connect to.
    """
    from quorumlog.pki.files import pair_in
    from quorumlog.pki.names import node_subject

    authority = _authority(directory)
    subject = node_subject(name, authority.cluster_id(), hosts or ())
    pair = pair_in(out or directory, subject.name)
    _print_made(authority.issue(subject, pair, key_type, days, force=force), directory)
    _copy_authority(authority, pair.certificate.parent)


@app.command(name="client")
def client_command(
    name: UserName,
    directory: Dir = CERTS,
    out: Out = None,
    days: Days = CERTIFICATE_DAYS,
    key_type: KeyTypeWord = "ec-p256",
    force: Force = False,
) -> None:
    """Make key and certificate of a user, whom nodes then know as User:NAME."""
    from quorumlog.pki.files import pair_in
    from quorumlog.pki.names import user_subject

    authority = _authority(directory)
    subject = user_subject(name, authority.cluster_id())
    pair = pair_in(out or directory, subject.name)
    _print_made(authority.issue(subject, pair, key_type, days, force=force), directory)
    _copy_authority(authority, pair.certificate.parent)


def _copy_authority(authority: "AuthorityDirectory", target: Path) -> None:
    """Put ca.pem beside a certificate, unless something of that name is there."""
    from quorumlog.pki.files import CERTIFICATE_MODE, read, write_new

    copy = target / "ca.pem"
    if not copy.exists():
        write_new(copy, read(authority.pair.certificate), CERTIFICATE_MODE)
        print_line(
            f"copied {copy}: the authority's certificate, which whoever uses this certificate has "
            "to trust"
        )


def _print_made(made: "Made", directory: Path) -> None:
    from quorumlog.pki.issue import serial_text

    subject, certificate = made.subject, made.certificate
    if made.finished:
        print_note("an earlier renewal was interrupted, and is finished now")
    if made.pair.key == made.pair.certificate:
        print_line(f"made {made.pair.certificate}")
    else:
        print_line(f"made {made.pair.certificate} and {made.pair.key}")
    for_hosts = f", hosts {', '.join(subject.hosts)}" if subject.hosts else ""
    until = f"until {certificate.not_valid_after_utc:%Y-%m-%d}"
    print_line(f"{subject.kind} {subject.name}{for_hosts}, {until}")
    if made.former is not None:
        ends = made.former.not_valid_after_utc
        print_line(f"the former certificate stays valid until {ends:%Y-%m-%d}; to end that sooner:")
        where = "" if directory == CERTS else f" --dir {shlex.quote(str(directory))}"
        print_line(f"quorumlog cert revoke {serial_text(made.former)}{where}")


@app.command(name="csr")
def csr_command(
    kind: Annotated[
        Literal["node", "client"], typer.Argument(metavar="node|client", help="Whom it is for.")
    ],
    name: AnyName,
    hosts: Hosts = None,
    directory: Annotated[
        Path, typer.Option("--dir", "-d", help="Directory with ca.pem, for key and request.")
    ] = CERTS,
    key_type: KeyTypeWord = "ec-p256",
    force: Force = False,
) -> None:
    """Make a key, and a request for its certificate, where the authority's key is not.

    Key and request are NAME.key and NAME.csr. Only the request goes to the authority, whose
    operator signs it with 'quorumlog cert sign'.
    """
    from quorumlog.pki.authority import cluster_id_beside, write_request
    from quorumlog.pki.files import pair_in
    from quorumlog.pki.names import node_subject, user_subject

    cluster_id = cluster_id_beside(directory)
    if kind == "node":
        subject = node_subject(name, cluster_id, hosts or ())
    elif hosts:
        raise typer.BadParameter("a client's certificate names no hosts: leave --host out")
    else:
        subject = user_subject(name, cluster_id)
    pair = pair_in(directory, subject.name)
    request = write_request(subject, pair, key_type, force=force)
    print_line(f"made {pair.key}, which stays here, and {request}")
    print_line(f"next, at the authority: quorumlog cert sign {request.name}")
    print_line(f"then copy its answer here, as {pair.certificate}")


@app.command(name="sign")
def sign_command(
    request: Annotated[Path, typer.Argument(metavar="FILE", help="The request, NAME.csr.")],
    directory: Dir = CERTS,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="The certificate.", show_default="FILE as .pem"
        ),
    ] = None,
    days: Days = CERTIFICATE_DAYS,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Force = False,
) -> None:
    """Make the certificate that a request asks for, after showing for whom it is."""
    authority = _authority(directory)
    requested = authority.requested(request)
    subject = requested.subject
    target = out or request.with_suffix(".pem")
    for_hosts = f", hosts {', '.join(subject.hosts)}" if subject.hosts else ""
    print_line(f"{request} asks for: {subject.kind} {subject.name}{for_hosts}")
    if not yes:
        typer.confirm("Sign it?", abort=True)
    _print_made(authority.sign(requested, target, days, force=force), directory)


@app.command(name="renew")
def renew_command(
    certificate: Annotated[
        Path, typer.Argument(metavar="FILE", help="The certificate, NAME.pem; NAME.key is beside.")
    ],
    directory: Dir = CERTS,
    hosts: NewHosts = None,
    days: Days = CERTIFICATE_DAYS,
    key_type: Annotated[
        Literal["ec-p256", "ed25519"] | None,
        typer.Option("--key-type", help="Kind of key.", show_default="as it is"),
    ] = None,
) -> None:
    """Put a new key and certificate of the same names in the place of old ones.

    A running node takes both within seconds. The old certificate stays valid until it expires.
    """
    from quorumlog.pki.files import Pair

    pair = Pair(certificate, certificate.with_suffix(".key"))
    _print_made(_authority(directory).renew(pair, hosts, key_type, days), directory)


@app.command(name="revoke")
def revoke_command(
    wanted: Annotated[
        list[str],
        typer.Argument(
            metavar="WHAT...",
            help="node/NAME or user/NAME (all that they have), a file, or a serial number.",
        ),
    ],
    directory: Dir = CERTS,
    days: CrlDays = CRL_DAYS,
) -> None:
    """Revoke certificates, and make the list for the nodes (ca.crl). There is no way back.

    Nodes take a newer list without a restart. A node whose table tls has no crl yet is given that
    key and restarted.
    """
    from quorumlog.pki.authority import path_of
    from quorumlog.pki.issue import serial_text

    authority = _authority(directory)
    for one in authority.revoke(wanted, days):
        print_line(f"revoked {path_of(one)}, serial {serial_text(one)}")
    _print_list(authority, days)


@app.command(name="crl")
def crl_command(directory: Dir = CERTS, days: CrlDays = CRL_DAYS) -> None:
    """Make the list of revoked certificates anew (ca.crl), before it is overdue."""
    authority = _authority(directory)
    count = authority.write_crl(days)
    print_line(f"{counted(count, 'certificate')} revoked in all")
    _print_list(authority, days)


def _print_list(authority: "AuthorityDirectory", days: int) -> None:
    print_line(
        f"made {authority.crl_file}, to be copied to every node; the next is due in {days} days"
    )


@app.command(name="show")
def show_command(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Certificates, keys, requests, revocation lists."),
    ],
    as_json: AsJson = False,
) -> None:
    """Say what a file is: whose, of which cluster, for which hosts, and when it expires."""
    from quorumlog.cli.cert_output import print_described, print_described_json
    from quorumlog.pki.describe import describe_file

    now = datetime.now(UTC)
    parts = [one for path in paths for one in describe_file(path, now)]
    for number, one in enumerate(parts):
        if as_json:
            print_described_json(one, now)
        else:
            if number:
                print_line("")
            print_described(one, now)


@app.command(name="check")
def check_command(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="Certificates of nodes and clients, or directories of these; each with its key.",
            show_default=False,
        ),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            "--ca", metavar="FILE", help="Whom all trust.", show_default="ca.pem beside each"
        ),
    ] = None,
    servers: Annotated[
        str | None,
        typer.Option(
            "--servers",
            "-s",
            metavar="HOST:PORT,...",
            help="Also ask these running nodes which certificate they show, and whether they take "
            "the first of yours.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether nodes and clients would accept each other's certificates, and if not, why.

    Exit status 1 if one would refuse another.
    """
    from quorumlog.cli.cert_output import print_checked, print_checked_json
    from quorumlog.pki.probe import check_all

    if not paths and (ca is None or servers is None):
        raise typer.BadParameter("give files or directories, or --servers with --ca")
    addresses = [one.strip() for one in (servers or "").split(",") if one.strip()]
    now = datetime.now(UTC)
    checked = check_all(paths or [], ca, addresses, now)
    (print_checked_json if as_json else print_checked)(checked, now)
    if checked.problems:
        raise typer.Exit(1)
