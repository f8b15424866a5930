"""OAUTHBEARER (RFC 7628): a signed token (JWT, RFC 7519) that says who somebody is.

The keys of those who sign are given as text (JWKS, RFC 7517). None is ever fetched from an address,
least of all from one that a token names. Each key has one algorithm, so that a token cannot choose
it, and a shared secret is no key.
"""

import math
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from quorumlog.auth.certificates import is_user_name
from quorumlog.auth.sasl import Done, Failed, Reason, Step
from quorumlog.model.bounds import NAME_LENGTH_MAX
from quorumlog.model.errors import ConfigError
from quorumlog.model.wording import counted

KEYS_MAX: Final = 64
"""Keys in a file of keys."""
RSA_BITS_MIN: Final = 2_048
"""Shorter keys of RSA can be broken (NIST SP 800-131A)."""
NOT_BEFORE_LEEWAY_S: Final = 30
"""How far the clock of the issuer may be before this node's, for `nbf` and `iat`, in seconds."""
_MESSAGE: Final = re.compile(
    rb"n,(?:a=([^,\x01]*))?,\x01((?:[A-Za-z]+=[^\x01]*\x01)*)\x01", re.DOTALL
)
"""GS2 header without channel binding, and key-value pairs, each of which ends with 0x01."""
_BEARER: Final = re.compile(r"(?i:bearer) ([A-Za-z0-9._~+/=-]+)")
_ALGORITHMS: Final = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC P-256": ("ES256",),
    "EC P-384": ("ES384",),
    "EC P-521": ("ES512",),
    "OKP Ed25519": ("EdDSA",),
}
"""The algorithms of each kind of key and curve. The first is meant by a key that names none."""


class TokenKey(NamedTuple):
    """A public key, and the only algorithm that it is used with."""

    key_id: str
    algorithm: str
    key: Any


def keys_of(jwks: bytes, where: str) -> list[TokenKey]:
    """Return the keys of a JWKS; without entries none is taken, and nobody logs in by a token.

    Raises `ConfigError`, which says what is wrong `where`.
    """
    try:
        found = msgspec.json.decode(jwks)
        entries = found["keys"]
        if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
            raise TypeError
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, KeyError):
        raise ConfigError(f"{where} is no JWKS: a JSON object with a list `keys`") from None
    if len(entries) > KEYS_MAX:
        text = f"{where} has {counted(len(entries), 'key')}; {KEYS_MAX} are taken at most"
        raise ConfigError(text)
    keys = [
        _key_of(entry, f"{where}: key number {number + 1}")
        for number, entry in enumerate(entries)
        if entry.get("use", "sig") == "sig"  # providers have keys for encryption beside them
    ]
    if entries and not keys:
        raise ConfigError(f"{where} has no key for signatures")
    ids = [one.key_id for one in keys]
    if len(set(ids)) < len(ids):
        raise ConfigError(f"{where}: several keys have the same `kid`, or none")
    return keys


def _key_of(entry: dict[str, Any], where: str) -> TokenKey:
    # they import cryptography, which only nodes with OAUTHBEARER pay for
    from jwt import PyJWK  # noqa: PLC0415
    from jwt.exceptions import PyJWTError  # noqa: PLC0415

    kind, named = f"{entry.get('kty')} {entry.get('crv', '')}".rstrip(), entry.get("alg")
    known = _ALGORITHMS.get(kind)
    if known is None:
        raise ConfigError(f"{where} is of {kind!r}; known are {', '.join(_ALGORITHMS)}")
    if named is not None and named not in known:
        raise ConfigError(f"{where} has alg {named!r}; it can have {', '.join(known)}")
    if "d" in entry:
        raise ConfigError(f"{where} is no public key, but a private one")
    algorithm = named or known[0]
    try:
        key = PyJWK(entry, algorithm).key
    except (PyJWTError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{where} cannot be used: {error}") from None
    if kind == "RSA" and key.key_size < RSA_BITS_MIN:
        raise ConfigError(f"{where} has {key.key_size} bits; RSA needs {RSA_BITS_MIN}")
    key_id = entry.get("kid", "")
    return TokenKey(key_id if isinstance(key_id, str) else "", algorithm, key)


class TokenRules(NamedTuple):
    """What tokens must say. `keys` returns those that may sign now; `wall_ms`: Unix time."""

    keys: Callable[[], list[TokenKey]]
    issuer: str
    audience: str
    principal_claim: str
    wall_ms: Callable[[], int]

    def check(self, token: str) -> Done | Failed:
        """Return whose token it is, or why it is refused."""
        import jwt  # noqa: PLC0415  (see `_key_of`)

        try:
            header = jwt.get_unverified_header(token)
            key = self._key(header.get("kid"))
            if key is None:
                return Failed(Reason.TOKEN, "none of the known keys has signed it")
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm],
                audience=self.audience,
                issuer=self.issuer,
                options={
                    "require": ["exp", "iss", "aud", "sub"],
                    "verify_exp": False,  # below, by the clock of this node
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except (jwt.exceptions.PyJWTError, ValueError, TypeError) as error:
            return Failed(Reason.TOKEN, f"{type(error).__name__}: {error}")
        return self._judged(claims)

    def _key(self, key_id: object) -> TokenKey | None:
        keys = self.keys()
        if key_id is None:
            return keys[0] if len(keys) == 1 else None
        return next((one for one in keys if one.key_id == key_id), None)

    def _judged(self, claims: dict[str, Any]) -> Done | Failed:
        now = self.wall_ms() / 1000
        expires, user = claims["exp"], claims.get(self.principal_claim)
        times = (expires, claims.get("nbf", 0), claims.get("iat", 0))
        if not all(map(_is_number, times)):
            return Failed(Reason.TOKEN, "a time in it is no number")
        if expires <= now:
            return Failed(Reason.TOKEN, "it has expired")
        if max(times[1:]) > now + NOT_BEFORE_LEEWAY_S:
            return Failed(Reason.TOKEN, "it is not valid yet; are the clocks right?")
        if not isinstance(user, str) or not user:
            return Failed(Reason.TOKEN, f"its claim {self.principal_claim} is no name")
        if not is_user_name(user):  # others would be made alike by it: several subjects, one user
            text = f"its claim {self.principal_claim} is no user's name: {user[:NAME_LENGTH_MAX]!a}"
            return Failed(Reason.TOKEN, text)
        return Done(user, expires_ms=int(min(expires, 1 << 40) * 1000))


def _is_number(found: object) -> bool:
    """Whether it can be compared: a number in JSON may be larger than any float."""
    return isinstance(found, int) or (isinstance(found, float) and math.isfinite(found))


class OauthbearerExchange:
    """A login by OAUTHBEARER: one message of the client, with the token.

    A refusal ends the login at once, without the further message that RFC 7628 has for a reason:
    a reason is not told.
    """

    def __init__(self, rules: TokenRules) -> None:
        self._rules = rules
        self.user = ""

    def step(self, data: bytes) -> Step:
        """See `sasl.Exchange`."""
        found = _MESSAGE.fullmatch(data)
        if found is None:
            return Failed(Reason.MALFORMED, "a message that is not RFC 7628's")
        pairs = [pair.partition(b"=") for pair in found[2].split(b"\x01") if pair]
        values = [value for key, _, value in pairs if key == b"auth"]
        bearer = _BEARER.fullmatch(values[0].decode("latin-1")) if len(values) == 1 else None
        if bearer is None:
            return Failed(Reason.MALFORMED, "a message without one Bearer token")
        checked = self._rules.check(bearer[1])
        if isinstance(checked, Done):
            self.user = checked.user
            if (found[1] or b"").decode("utf-8", "replace") not in ("", checked.user):
                return Failed(Reason.OTHER_USER, "it would act for another user")
        return checked
