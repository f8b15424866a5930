"""The table `[tls]` of a node's configuration."""

from pathlib import Path
from typing import Final, Literal

import msgspec

from quorumlog.model.errors import ConfigError
from quorumlog.model.name_rules import RULES_MAX, parse_member_rule, parse_principal_rule

FILES: Final = ("certificate", "key", "ca", "peer_ca", "crl")
"""The keys that name files."""


class TlsConfig(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """How a node speaks TLS, on its own port and on that of Kafka's clients. All files are PEM."""

    mode: Literal["required", "optional"] = "required"
    """optional: the ports serve plain connections, too, and peers that do not speak TLS are spoken
    to without: for the time in which a cluster changes over."""
    certificate: str
    """The node's certificate, and those of intermediate authorities after it."""
    key: str
    """Its private key, which nobody but the node's user may read."""
    ca: str
    """The authorities whose certificates are accepted."""
    peer_ca: str = ""
    """Those that peers' certificates come from; empty: `ca`."""
    crl: str = ""
    """Revocation lists of all of these authorities; empty: none is looked at."""
    min_version: Literal["1.2", "1.3"] = "1.3"
    client_auth: Literal["none", "optional", "required"] = "optional"
    """Whether clients show certificates. none: they may, but it gives them no name. Peers always
    have to."""
    member_rule: str = ""
    """Which member a certificate without our URI is of: a regular expression for one of its
    alternative names, written as in `DNS:n0.log.example`, whose group is the member's id."""
    principal_rules: list[str] = []
    """How the principal of a client is made of its certificate's subject, by the first rule that
    fits, as in Kafka's `ssl.principal.mapping.rules`; empty: it is the whole subject. A certificate
    with our URI needs no rule."""

    def __post_init__(self) -> None:
        """Check values and their relations."""
        for key in ("certificate", "key", "ca"):
            if not getattr(self, key):
                raise ConfigError(f"[tls] {key}: the name of a file is needed")
        if self.member_rule:
            parse_member_rule(self.member_rule)
            if not self.peer_ca:
                raise ConfigError(
                    "[tls] memberRule: without our URI in them, only certificates of an authority "
                    "that nobody else has any from may be members': set peerCa, too"
                )
        if len(self.principal_rules) > RULES_MAX:
            raise ConfigError(f"[tls] principalRules: at most {RULES_MAX} rules")
        for rule in self.principal_rules:
            parse_principal_rule(rule)

    def relative_to(self, directory: Path) -> "TlsConfig":
        """Return the same with paths that are relative taken as relative to a directory."""
        paths = {name: getattr(self, name) for name in FILES}
        return msgspec.structs.replace(
            self, **{name: str(directory / path) for name, path in paths.items() if path}
        )
