"""Which certificates of an authority are revoked: its file, from which the list (CRL) is made."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from quorumlog.pki.errors import PkiError

REVOKED_MAX: Final = 100_000
KEPT_AFTER_EXPIRY: Final = timedelta(days=90)
"""An expired certificate needs no revocation; it stays listed for a while, should clocks differ."""


class RevokedCertificate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One revoked certificate: whose it was (`user/alice`), and its serial number in hex."""

    serial: str
    subject: str
    at: datetime
    expires: datetime


class Revocations(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"
):
    """The content of revoked.json; `number` is that of the last list that was made of it."""

    format: Literal["quorumlog-revoked"] = "quorumlog-revoked"
    version: Literal[1] = 1
    number: int = 0
    revoked: list[RevokedCertificate] = []

    def with_more(self, more: Sequence[RevokedCertificate], now: datetime) -> "Revocations":
        """Return the content for the next list. Raises `PkiError` above `REVOKED_MAX`."""
        by_serial = {one.serial: one for one in (*more, *self.revoked)}  # what is known stays
        kept = [one for one in by_serial.values() if one.expires + KEPT_AFTER_EXPIRY > now]
        if len(kept) > REVOKED_MAX:
            raise PkiError(
                f"more than {REVOKED_MAX:,} certificates of this authority are revoked: make a new "
                "authority for the cluster ('quorumlog cert ca --cluster-id')"
            )
        return Revocations(number=self.number + 1, revoked=sorted(kept, key=lambda one: one.at))


_FILES: Final = msgspec.json.Decoder(Revocations)


def load_revocations(raw: bytes, where: str) -> Revocations:
    """Return what a file says. Raises `PkiError`."""
    try:
        return _FILES.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PkiError(
            f"{where} is damaged, or of another version: {error}. It says which certificates are "
            "revoked: get it back from a copy, as without it revoked ones are accepted again"
        ) from error


def dump_revocations(content: Revocations) -> bytes:
    """Return the content as the file has it."""
    return msgspec.json.format(msgspec.json.encode(content)) + b"\n"
