"""Who the owner of a certificate is, which a TLS library has verified.

A certificate names a node or a user by a URI among its alternative names:
`quorumlog://CLUSTER-ID/node/NAME` or `quorumlog://CLUSTER-ID/user/NAME`. Its common name says
nothing: common names are neither unique nor typed.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote

from quorumlog.auth.principals import USER, is_reserved
from quorumlog.model.errors import RemoteProtocolError
from quorumlog.model.name_rules import MemberRule, PrincipalRule
from quorumlog.model.security_config import NOT_LOGGED_IN
from quorumlog.model.wording import shortened

ANONYMOUS: Final = USER + NOT_LOGGED_IN
"""The principal of whoever shows no certificate and does not log in, as in Kafka."""
USER_NAME_MAX: Final = 128
SCHEME: Final = "quorumlog://"
_IDENTITY: Final = re.compile(r"quorumlog://([A-Za-z0-9_-]{22})/(node|user)/([^/]+)")
_CLUSTER: Final = re.compile(r"quorumlog://[A-Za-z0-9_-]{22}/?")
_SHORT_NAMES: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}


class Certified(NamedTuple):
    """Whom a certificate is of."""

    kind: Literal["node", "user"]
    name: str
    cluster_id: str
    """Empty: the certificate has no URI of ours, and `memberRule` says that it is a node's."""
    serial: str
    """The certificate's serial number, as its authority's revocation list has it: in hex."""

    @property
    def principal(self) -> str:
        """Its name for the log and for rights, such as `User:alice` or `Node:n0`."""
        return f"{self.kind.capitalize()}:{self.name}"


def certified_of(
    certificate: Mapping[str, Any], member_rule: MemberRule | None = None
) -> Certified | None:
    """Return whom a certificate names; None: neither a node nor a user by a URI of ours.

    `certificate` is what `ssl.SSLSocket.getpeercert` returns. `member_rule`: which nodes have
    certificates without a URI. Raises `RemoteProtocolError` if it names several, or if a URI of
    ours is malformed.
    """
    names: Sequence[tuple[str, str]] = certificate.get("subjectAltName", ())
    serial = str(certificate.get("serialNumber", ""))
    found = {
        _named(value, serial)
        for kind, value in names
        if kind == "URI" and value.lower().startswith(SCHEME) and not _CLUSTER.fullmatch(value)
    }
    if member_rule is not None:
        for member in member_rule.members_of(list(names)):
            found.add(Certified("node", member, "", serial))
    if len(found) > 1:
        raise RemoteProtocolError("the certificate names more than one node or user")
    return next(iter(found), None)


def _named(uri: str, serial: str) -> Certified:
    found = _IDENTITY.fullmatch(uri)
    name = "" if found is None else unquote(found[3], errors="replace")
    if found is None or not is_user_name(name):
        raise RemoteProtocolError(
            f"the certificate's URI {uri[:200]!r} is not {SCHEME}CLUSTER-ID/node/NAME or "
            f"{SCHEME}CLUSTER-ID/user/NAME"
        )
    return Certified("node" if found[2] == "node" else "user", name, found[1], serial)


def is_user_name(name: str) -> bool:
    """Whether a user may have a name: 1 to 128 characters, in NFKC, no controls, not reserved.

    U+FFFD stands for bytes that are no UTF-8, and may not be in it either.
    """
    if not 0 < len(name) <= USER_NAME_MAX or is_reserved(name) or "\ufffd" in name:
        return False
    is_printable = not any(unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp") for sign in name)
    return is_printable and unicodedata.is_normalized("NFKC", name)


def subject_of(certificate: Mapping[str, Any]) -> str:
    """Return the subject of a certificate as RFC 2253 writes it: `CN=alice,OU=data,O=Example`."""
    parts: Sequence[Sequence[tuple[str, str]]] = certificate.get("subject", ())
    return ",".join(
        "+".join(f"{_SHORT_NAMES.get(name, name)}={_escaped(value)}" for name, value in part)
        for part in reversed(parts)
    )


def _escaped(value: str) -> str:
    text = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    if text.startswith(("#", " ")):
        text = f"\\{text}"
    return f"{text[:-1]}\\ " if text.endswith(" ") and len(text) > 1 else text


def principal_of(
    certificate: Mapping[str, Any],
    certified: Certified | None,
    rules: Sequence[PrincipalRule] = (),
) -> str:
    """Return the principal of whoever shows a certificate; `ANONYMOUS` if that is nobody.

    Our URI says it; otherwise the first of the rules that fits the subject, or, without rules, the
    whole subject. Raises `RemoteProtocolError` if that is no name that a user may have: no ACL
    could name its owner. Nor is it made one (by NFKC): several subjects would be one user.
    """
    if certified is not None:
        return certified.principal
    subject = subject_of(certificate)
    name: str | None = subject
    if rules and unicodedata.is_normalized("NFKC", subject):  # it is refused below otherwise
        name = next((name for rule in rules if (name := rule.name_of(subject)) is not None), None)
    if not name:
        return ANONYMOUS
    if not is_user_name(name):
        raise RemoteProtocolError(
            f"the certificate names its owner {shortened(name)!a}, which is no name of a user: it "
            f"has at most {USER_NAME_MAX} characters in the form NFKC, none of them a control "
            "character, and is neither blank nor reserved; principalRules can make another one of "
            "it"
        )
    return f"User:{name}"


def check_member(certified: Certified | None, member: str, cluster_id: str) -> None:
    """Raise `RemoteProtocolError` unless a certificate is of a member of a cluster.

    `cluster_id` is what the own certificate says.
    """
    if certified is None:
        needed = f"the URI {SCHEME}{cluster_id}/node/{member}"
        if not cluster_id:
            needed = (
                f"an alternative name of which memberRule makes {member}, and to be of an "
                "authority in peerCa"
            )
        raise RemoteProtocolError(
            f"no node's certificate was shown for {member}: it needs {needed}"
        )
    if certified.kind != "node":
        raise RemoteProtocolError(
            f"a user's certificate ({certified.name}) was shown for node {member}"
        )
    if certified.cluster_id != cluster_id:
        raise RemoteProtocolError(
            f"the certificate of {certified.name} is of cluster {certified.cluster_id or '(none)'},"
            f" this is {cluster_id or '(none)'}"
        )
    if certified.name != member:
        raise RemoteProtocolError(
            f"the certificate of node {certified.name} was shown for node {member}"
        )
