"""Records of TLS 1.3 that no library sends, sealed with the keys of a real connection.

`ssl` writes the secrets of a connection into a file (SSLKEYLOGFILE); RFC 8446, section 7, says what
keys come of them.
"""

import hashlib
import struct
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

ALERT, HANDSHAKE, DATA, CHANGE_CIPHER_SPEC = 0x15, 0x16, 0x17, 0x14
CLIENT_HELLO, NEW_SESSION_TICKET, END_OF_EARLY_DATA, CERTIFICATE, FINISHED, KEY_UPDATE = (
    1, 4, 5, 11, 20, 24,
)  # fmt: skip
NOT_ASKED, ASKED = b"\0", b"\1"
"""Of a KeyUpdate: whether the other side is to change its keys, too."""
CLOSE_NOTIFY, USER_CANCELED = b"\1\0", b"\1\x5a"
PLAIN_MAX = 1 << 14
CIPHERS = {
    "TLS_AES_256_GCM_SHA384": (AESGCM, 32, hashes.SHA384()),
    "TLS_AES_128_GCM_SHA256": (AESGCM, 16, hashes.SHA256()),
    "TLS_CHACHA20_POLY1305_SHA256": (ChaCha20Poly1305, 32, hashes.SHA256()),
}


def handshake(kind, body):
    """Return a message of the handshake."""
    return bytes([kind]) + len(body).to_bytes(3, "big") + body


class Sealer:
    """Seals records as the client of a connection does, from its first one after the handshake."""

    def __init__(self, keylog, cipher):
        lines = [line.split() for line in Path(keylog).read_text().splitlines()]
        secret = [line[2] for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0"][-1]
        self._aead, self._size, self._hash = CIPHERS[cipher]
        self._use(bytes.fromhex(secret))

    def _use(self, secret):
        self._secret, self._number = secret, 0
        self._seal = self._aead(self._expanded(b"key", self._size)).encrypt
        self._iv = self._expanded(b"iv", 12)

    def _expanded(self, label, size):
        label = b"tls13 " + label
        info = struct.pack(">HB", size, len(label)) + label + b"\0"
        return HKDFExpand(self._hash, size, info).derive(self._secret)

    def record(self, kind, content, *, padding=0):
        """Return a record with content of a kind; it may be larger than TLS allows."""
        inner = content + bytes([kind]) + bytes(padding)
        header = struct.pack(">BHH", DATA, 0x0303, len(inner) + 16)
        number = self._number.to_bytes(12, "big")
        nonce = bytes(one ^ other for one, other in zip(self._iv, number, strict=True))
        self._number += 1
        return header + self._seal(nonce, inner, header)

    def key_update(self, asked=NOT_ASKED):
        """Return a KeyUpdate; what follows is sealed with the next keys."""
        made = self.record(HANDSHAKE, handshake(KEY_UPDATE, asked))
        self._use(self._expanded(b"traffic upd", hashlib.new(self._hash.name).digest_size))
        return made
