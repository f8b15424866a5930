"""Why a TLS connection failed, in words that say what to look at."""

import ssl
from datetime import UTC, datetime
from typing import Final

CUT_OFF: Final = (
    "cut off: the other side ended the connection without TLS's close_notify, so it was killed, or "
    "somebody in between ended it"
)
CUT_OFF_EARLY: Final = "the other side ended the connection during the TLS handshake"


class TlsError(ConnectionError):
    """TLS did not begin, or ended other than it should; the text says why."""

    @property
    def is_final(self) -> bool:
        """Whether the same is to be expected of the next connection: nobody was just killed."""
        return str(self) not in (CUT_OFF, CUT_OFF_EARLY)


NOT_TLS: Final = "it does not speak TLS (a node without [tls] in its configuration)"
_NOT_TRUSTED = "its certificate is of an authority that is not trusted here"
_VERIFY: Final = {
    3: "there is no revocation list (crl) of its certificate's authority here",
    12: "the revocation list (crl) of its certificate's authority has expired here",
    18: _NOT_TRUSTED,
    19: _NOT_TRUSTED,
    20: _NOT_TRUSTED,
    21: _NOT_TRUSTED,
    23: "its certificate is revoked",
    26: "its certificate is not for this use (extended key usage)",
}
"""By the codes of OpenSSL (x509_vfy.h)."""
_NOT_YET_VALID, _EXPIRED = 9, 10
_OTHER_NAMES = (62, 64)
_ALERTS: Final = {
    "BAD_CERTIFICATE": "refuses {own}: it is malformed, not valid yet, or for another name",
    "CERTIFICATE_EXPIRED": "refuses {own}: expired",
    "CERTIFICATE_REQUIRED": "asks for a certificate, and none was given",
    "CERTIFICATE_REVOKED": "refuses {own}: revoked",
    "CERTIFICATE_UNKNOWN": "refuses {own}",
    "DECRYPT_ERROR": "cannot verify what {own} signed",
    "HANDSHAKE_FAILURE": "finds no common cipher, or asks for a certificate and was given none",
    "PROTOCOL_VERSION": "speaks another version of TLS, or none at all",
    "UNKNOWN_CA": "does not trust the authority of {own}",
    "UNSUPPORTED_CERTIFICATE": "refuses {own}: it is not for this use (extended key usage)",
}
"""What the other side said, by the names of alerts (RFC 8446, section 6)."""
_REASONS: Final = {
    "NO_SHARED_CIPHER": "there is no common cipher",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate, and one is required here",
    "UNSUPPORTED_PROTOCOL": "there is no common version of TLS",
    "WRONG_VERSION_NUMBER": "it sent bytes that are no TLS",
}


def in_words(error: ssl.SSLError, certificate: str, now_s: float) -> str:
    """Return why TLS failed; `certificate`: the file of what was shown to the other side."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _verification(error, now_s)
    reason = error.reason or str(error)
    if "_ALERT_" in reason:
        alert = reason.partition("_ALERT_")[2]
        own = f"the certificate {certificate}" if certificate else "the certificate"
        said = _ALERTS.get(alert)
        if said is not None:
            return f"the other side {said.format(own=own)}"
        return f"the other side ended TLS: {alert.replace('_', ' ').lower()}"
    return _REASONS.get(reason, f"TLS failed: {reason.replace('_', ' ').lower()}")


def _verification(error: ssl.SSLCertVerificationError, now_s: float) -> str:
    code = error.verify_code
    clock = f"(the clock here: {datetime.fromtimestamp(now_s, UTC):%Y-%m-%dT%H:%M:%SZ})"
    if code == _EXPIRED:
        return f"its certificate has expired {clock}"
    if code == _NOT_YET_VALID:
        return f"its certificate is not valid yet {clock}"
    if code in _OTHER_NAMES:
        return f"its certificate is for another name: {error.verify_message.rstrip('.')}"
    return _VERIFY.get(code, f"its certificate is not accepted: {error.verify_message}")
