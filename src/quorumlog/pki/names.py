"""What certificates say of those they are made for: cluster, node or user, and hosts."""

import base64
import ipaddress
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from quorumlog.model.config import check_name
from quorumlog.model.errors import ConfigError
from quorumlog.model.security_config import NOT_LOGGED_IN
from quorumlog.pki.errors import PkiError

SCHEME: Final = "quorumlog://"
CLUSTER_ID_BYTES: Final = 16
CLUSTER_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}")
URI: Final = re.compile(
    rf"{SCHEME}(?P<cluster_id>{CLUSTER_ID.pattern})(?:/(?P<kind>node|user)/(?P<name>[^/?#]+))?"
)
NAME_CHARACTERS_MAX: Final = 64
"""A common name has no more (`ub-common-name` of RFC 5280), and Kafka's rules read that one."""
HOSTS_MAX: Final = 100
HOST_CHARACTERS_MAX: Final = 253
_LABEL: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST: Final = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*")

Kind: TypeAlias = Literal["node", "user"]
RandomBytes: TypeAlias = Callable[[int], bytes]
"""Returns as many random bytes as it is asked for."""


class Subject(NamedTuple):
    """Whom a certificate is for. `hosts`: the names and addresses by which clients reach a node."""

    kind: Kind
    name: str
    cluster_id: str
    hosts: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """What it is called within its cluster: `node/n0`, `user/alice`."""
        return f"{self.kind}/{self.name}"

    @property
    def uri(self) -> str:
        """Its name in a certificate, which is unique among all clusters."""
        return f"{cluster_uri(self.cluster_id)}/{self.path}"


def node_subject(name: str, cluster_id: str, hosts: Sequence[str]) -> Subject:
    """Return the subject of a node's certificate. Raises `PkiError`."""
    _check_name("node", name)
    return Subject("node", name, cluster_id, checked_hosts(hosts))


def user_subject(name: str, cluster_id: str) -> Subject:
    """Return the subject of a client's certificate. Raises `PkiError`.

    Names that look alike to a keyboard are one name: NFKC, as for names of users everywhere.
    """
    normal = unicodedata.normalize("NFKC", name)
    _check_name("user", normal)
    if normal == NOT_LOGGED_IN:
        raise PkiError(f"no user may be called {normal}: that is whoever has not logged in")
    return Subject("user", normal, cluster_id)


def _check_name(kind: Kind, name: str) -> None:
    try:
        check_name(kind, name, dash=kind == "user")
    except ConfigError as error:
        raise PkiError(str(error)) from None
    if len(name) > NAME_CHARACTERS_MAX:
        raise PkiError(
            f"{kind} {name!r} is not usable in a certificate: it has {len(name)} characters, and "
            f"{NAME_CHARACTERS_MAX} are the most"
        )


def new_cluster_id(random_bytes: RandomBytes) -> str:
    """Return a random id: 128 bits as Kafka writes them, 22 characters.

    None begins with `-`, which a command line would take for an option.
    """
    while True:
        found = base64.urlsafe_b64encode(random_bytes(CLUSTER_ID_BYTES)).rstrip(b"=").decode()
        if not found.startswith("-"):
            return found


def checked_cluster_id(text: str) -> str:
    """Return a cluster's id as it was given. Raises `PkiError` if it is none."""
    if not CLUSTER_ID.fullmatch(text):
        raise PkiError(
            f"{text!r} is no cluster id: 22 letters, digits, - and _, as 'quorumlog cert show' "
            "shows that of a certificate"
        )
    return text


def cluster_uri(cluster_id: str) -> str:
    """Return the name that the certificate of a cluster's authority has."""
    return f"{SCHEME}{cluster_id}"


def cluster_id_in(uris: Iterable[str]) -> str:
    """Return the id of the cluster that a certificate's URIs name; empty: they name none."""
    found = {match["cluster_id"] for match in map(URI.fullmatch, uris) if match}
    return found.pop() if len(found) == 1 else ""


def subject_in(uris: Iterable[str], hosts: Sequence[str]) -> Subject | None:
    """Return the node or user that a certificate's names name; None: nobody, or several."""
    found = [match for match in map(URI.fullmatch, uris) if match and match["kind"]]
    if len(found) != 1:
        return None
    kind: Kind = "node" if found[0]["kind"] == "node" else "user"
    return Subject(kind, found[0]["name"], found[0]["cluster_id"], tuple(hosts))


def checked_hosts(hosts: Sequence[str]) -> tuple[str, ...]:
    """Return host names and addresses in their usual form, each once. Raises `PkiError`."""
    if not hosts:
        raise PkiError(
            "a node's certificate names the hosts by which clients reach it: give each with "
            "--host, such as --host h0.example.org --host 10.0.0.10"
        )
    if len(hosts) > HOSTS_MAX:
        raise PkiError(f"{len(hosts)} hosts are too many for one certificate, at most {HOSTS_MAX}")
    return tuple(dict.fromkeys(map(_checked_host, hosts)))


def _checked_host(host: str) -> str:
    text = host.strip().removeprefix("[").removesuffix("]")
    if address := address_in(text):
        return address
    is_name = len(text) <= HOST_CHARACTERS_MAX and _HOST.fullmatch(text)
    is_number = text.rpartition(".")[2].isdecimal()  # such as 10.0.0.256
    if is_name and not is_number:
        return text.lower()
    name, _, port = host.strip().rpartition(":")
    if name and port.isdecimal():
        name = name.removeprefix("[").removesuffix("]")
        raise PkiError(f"--host {host}: certificates name no ports; give --host {name}")
    raise PkiError(
        f"--host {host}: not a host name or an IP address; names of other scripts are written in "
        "their ASCII form (xn--…)"
    )


def address_in(host: str) -> str:
    """Return an IP address in its usual form; empty: it is a name."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return ""
