"""What is in a file of PEM text: certificates, a request, a revocation list, a key."""

import re
from typing import Final

from cryptography import x509

from quorumlog.pki.errors import PkiError

BLOCK: Final = re.compile(
    rb"-----BEGIN (?P<label>[A-Z0-9 ]{1,40})-----\r?\n.*?-----END (?P=label)-----", re.DOTALL
)
CRL: Final = "X509 CRL"
BLOCKS_MAX: Final = 1_000


def blocks_in(text: bytes, where: str) -> list[tuple[str, bytes]]:
    """Return the labels and texts of all parts of a file. Raises `PkiError` if it has none."""
    found = [(match["label"].decode(), match[0]) for match in BLOCK.finditer(text)]
    if not found:
        raise PkiError(
            f"{where}: no file of certificates or keys: it has no line -----BEGIN …----- (PEM)"
        )
    if len(found) > BLOCKS_MAX:
        raise PkiError(f"{where}: {len(found):,} parts are too many, at most {BLOCKS_MAX:,}")
    return found


def certificates_in(text: bytes, where: str) -> list[x509.Certificate]:
    """Return the certificates of a file. Raises `PkiError` if it has none."""
    found = [
        load_certificate(block, where)
        for label, block in blocks_in(text, where)
        if label == "CERTIFICATE"
    ]
    if not found:
        raise PkiError(f"{where}: there is no certificate in it")
    return found


def crls_in(text: bytes, where: str) -> list[x509.CertificateRevocationList]:
    """Return the revocation lists of a file. Raises `PkiError` if it has none."""
    found = [load_crl(part, where) for label, part in blocks_in(text, where) if label == CRL]
    if not found:
        raise PkiError(f"{where}: there is no revocation list in it")
    return found


def load_certificate(block: bytes, where: str) -> x509.Certificate:
    """Return one certificate. Raises `PkiError`."""
    try:
        return x509.load_pem_x509_certificate(block)
    except ValueError as error:
        raise PkiError(f"{where}: a certificate in it is damaged ({error})") from error


def load_request(block: bytes, where: str) -> x509.CertificateSigningRequest:
    """Return a request for a certificate. Raises `PkiError`."""
    try:
        return x509.load_pem_x509_csr(block)
    except ValueError as error:
        raise PkiError(f"{where}: no request for a certificate that can be read") from error


def load_crl(block: bytes, where: str) -> x509.CertificateRevocationList:
    """Return a revocation list. Raises `PkiError`."""
    try:
        return x509.load_pem_x509_crl(block)
    except ValueError as error:
        raise PkiError(f"{where}: no revocation list that can be read ({error})") from error
