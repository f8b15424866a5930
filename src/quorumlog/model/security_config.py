"""The table `[security]` of a node's configuration: who has to log in, and how."""

import unicodedata
from pathlib import Path
from typing import Final, Literal

import msgspec

from quorumlog.model.errors import ConfigError

SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (SCRAM_SHA_256, SCRAM_SHA_512, PLAIN, OAUTHBEARER)
"""The SASL mechanisms that are spoken, by the names that IANA has registered and Kafka uses."""
PASSWORD_MECHANISMS: Final = (SCRAM_SHA_256, SCRAM_SHA_512, PLAIN)
"""Those of users whose passwords a cluster knows something of."""
SECRET_MECHANISMS: Final = (PLAIN, OAUTHBEARER)
"""Those that send a secret, which needs TLS."""
USER_PREFIX: Final = "User:"
"""How the principals of users begin, as in Kafka."""
NOT_LOGGED_IN: Final = "ANONYMOUS"
"""Instead of the name of a user: whoever has not said who that is, as in Kafka."""


class SecurityConfig(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """Who has to log in, and how. Without the table nobody has to, and nobody can."""

    login: Literal["required", "optional", "none"] = "required"
    """Of clients, on the native and on the Kafka port: required: by SASL or by a certificate;
    optional: who does neither is `User:ANONYMOUS`; none: SASL is not offered. The words are those
    of `clientAuth` in `[tls]`, and of Kafka's `ssl.client.auth`."""
    mechanisms: list[str] = msgspec.field(default_factory=lambda: [SCRAM_SHA_256, SCRAM_SHA_512])
    """The SASL mechanisms that are offered, as Kafka's `sasl.enabled.mechanisms`."""
    super_users: list[str] = []
    """Principals such as `User:admin`, as Kafka's `super.users`, who may do everything. They come
    by a certificate: nobody logs in by SASL under such a name."""
    authorization: Literal["on", "log", "off"] = "on"
    """Whether clients need rights: on: what no ACL allows is refused; log: everything is allowed,
    and what would be refused is reported; off: everything is allowed."""
    oauth_jwks_file: str = ""
    """File with the public keys (JWKS, RFC 7517) of those who issue tokens for OAUTHBEARER; it is
    read again when it changes."""
    oauth_issuer: str = ""
    """What a token's claim `iss` must be."""
    oauth_audience: str = ""
    """What a token's claim `aud` must contain."""
    oauth_principal_claim: str = "sub"
    """The claim that is the name of the user."""

    def __post_init__(self) -> None:
        """Check values and their relations. Raises `ConfigError`."""
        for name in self.mechanisms:
            if name not in MECHANISMS:
                raise ConfigError(
                    f"[security]: mechanisms has {name!r}; known are {', '.join(MECHANISMS)}"
                )
        if len(set(self.mechanisms)) < len(self.mechanisms):
            raise ConfigError("[security]: mechanisms names one twice")
        for user in self.super_users:
            if not user.startswith(USER_PREFIX) or user == USER_PREFIX:
                raise ConfigError(
                    f"[security]: superUsers has {user!r}, which is no principal; write "
                    f'"{USER_PREFIX}NAME"'
                )
            if user != (normal := unicodedata.normalize("NFKC", user)):
                raise ConfigError(
                    f"[security]: superUsers has {user!a}; names of users are compared in another "
                    f"form (NFKC): write {normal!r}"
                )
        if OAUTHBEARER not in self.mechanisms:
            return
        if not self.oauth_principal_claim:
            raise ConfigError("[security]: oauthPrincipalClaim must be the name of a claim")
        for key, value in (
            ("oauthJwksFile", self.oauth_jwks_file),
            ("oauthIssuer", self.oauth_issuer),
            ("oauthAudience", self.oauth_audience),
        ):
            if not value:
                raise ConfigError(f"[security]: {OAUTHBEARER} in mechanisms needs {key}")

    def relative_to(self, directory: Path) -> "SecurityConfig":
        """Return it with the paths of files that are relative to `directory`."""
        if not self.oauth_jwks_file:
            return self
        jwks = str(directory / self.oauth_jwks_file)
        return msgspec.structs.replace(self, oauth_jwks_file=jwks)
