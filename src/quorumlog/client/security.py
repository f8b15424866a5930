"""How a client knows that it speaks to the right cluster, and how it says who it is."""

import base64
import binascii
from typing import Final, Literal, get_args

import msgspec

from quorumlog.client.options import shown
from quorumlog.client.secret_sources import SecretFile
from quorumlog.model.errors import ConfigError
from quorumlog.model.secrets import Secret

SYSTEM_CA: Final = "system"
"""Stands for the certificate authorities that the machine trusts."""
SCRAM_SHA_256, OAUTHBEARER = "SCRAM-SHA-256", "OAUTHBEARER"
PASSWORD_MECHANISMS: Final = (SCRAM_SHA_256, "SCRAM-SHA-512", "PLAIN")
CLUSTER_ID_LENGTH: Final = 22
"""Characters of a random UUID as Kafka writes one: base64 for URLs, without padding."""

VerifyName = Literal["host", "cluster"]


class Security(msgspec.Struct, frozen=True, kw_only=True):
    """What a client needs for a cluster that speaks TLS. A client that has it never speaks plain.

    Two of equal content are equal, so clients can be kept by it. It shows no secret, and cannot be
    pickled while it has one.

    Attributes:
        ca: file of the certificate authorities, in PEM, of which one must have signed a node's
            certificate; "system": those that the machine trusts.
        certificate: file of the client's own certificate, in PEM; "": none is shown.
        key: file of its private key, which nobody else may read.
        verify_name: what the certificate of a node must name: the "host" that was dialled, or a
            node of the "cluster" `cluster_id`.
        cluster_id: id of the cluster, the only one that is spoken to; "": any.
        mechanism: how a user logs in: SCRAM-SHA-256 (the default with a password), SCRAM-SHA-512,
            PLAIN, or OAUTHBEARER (the default with a token). "": by the certificate, or not at all.
        user: name of the user; with a token this is what the token says.
        password: the user's password.
        token: a token of OAUTHBEARER (RFC 7628), or the file that has it at each login.

    Raises:
        ConfigError: an attribute has a wrong type or value, or needs another one.
    """

    ca: str = SYSTEM_CA
    certificate: str = ""
    key: str = ""
    verify_name: VerifyName = "host"
    cluster_id: str = ""
    mechanism: str = ""
    user: str = ""
    password: Secret | None = None
    token: Secret | SecretFile | None = None

    def __post_init__(self) -> None:
        for name in ("ca", "certificate", "key", "cluster_id", "mechanism", "user"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"{name} is a str, not {shown(getattr(self, name))}")
        kinds = {"password": Secret | None, "token": Secret | SecretFile | None}
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):  # it is shown by nothing
                raise ConfigError(f"{name} is a Secret, such as Secret(text), or None")
        self._check_certificates()
        if not self.mechanism and (self.password or self.token):
            default = OAUTHBEARER if self.password is None else SCRAM_SHA_256
            msgspec.structs.force_setattr(self, "mechanism", default)
        self._check_login()

    def _check_certificates(self) -> None:
        if not self.ca:
            raise ConfigError(
                f'ca is the file of a certificate authority, or "{SYSTEM_CA}": without it, anybody '
                "could take the place of a node"
            )
        if bool(self.certificate) != bool(self.key):
            given, lacks = ("certificate", "key") if self.certificate else ("key", "certificate")
            raise ConfigError(f"{given} is given without {lacks}: give both, or neither")
        if self.verify_name not in get_args(VerifyName):
            raise ConfigError(f"verify_name is host or cluster, not {shown(self.verify_name)}")
        if self.cluster_id and not is_cluster_id(self.cluster_id):
            raise ConfigError(
                f"cluster_id is a cluster's id of {CLUSTER_ID_LENGTH} characters, not "
                f"{shown(self.cluster_id)}"
            )
        if self.verify_name == "cluster" and not self.cluster_id:
            raise ConfigError("verify_name is cluster: then cluster_id must say which cluster")

    def _check_login(self) -> None:
        known = (*PASSWORD_MECHANISMS, OAUTHBEARER)
        if self.mechanism and self.mechanism not in known:
            raise ConfigError(
                f"mechanism is one of {', '.join(known)}, not {shown(self.mechanism)}"
            )
        if self.password is not None and self.token is not None:
            raise ConfigError("a password and a token are given: a login takes one of them")
        if self.mechanism == OAUTHBEARER:
            if self.token is None:
                raise ConfigError(f"mechanism {OAUTHBEARER} needs a token")
        elif self.token is not None:
            raise ConfigError(f"a token is for mechanism {OAUTHBEARER}, not {self.mechanism}")
        elif self.mechanism and not (self.user and self.password):
            lacks = "password" if self.user else "user"
            raise ConfigError(
                f"mechanism {self.mechanism} needs a user and a password: the {lacks} is missing"
            )
        elif self.user and not self.mechanism:
            raise ConfigError(f"user {self.user} has no password and no token to log in with")

    @property
    def paths(self) -> list[str]:
        """The files that are named."""
        authority = "" if self.ca == SYSTEM_CA else self.ca
        return [path for path in (authority, self.certificate, self.key) if path]


def is_cluster_id(text: str) -> bool:
    """Whether a text has the form of a cluster's id: a UUID as Kafka writes one."""
    try:
        raw = base64.b64decode(f"{text}==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return False
    return len(text) == CLUSTER_ID_LENGTH and len(raw) == 16
