"""Private keys: making them, and PKCS #8 text in and out."""

from typing import Final, Literal, TypeAlias

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from quorumlog.pki.errors import PkiError

KeyType: TypeAlias = Literal["ec-p256", "ed25519"]
PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey
PublicKey: TypeAlias = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey
RSA_BITS_MIN: Final = 2048


def new_key(kind: KeyType) -> PrivateKey:
    """Return a new key; the library draws it from the system's randomness itself."""
    if kind == "ed25519":
        return ed25519.Ed25519PrivateKey.generate()
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: PrivateKey) -> bytes:
    """Return a key as PKCS #8, without a password: a node starts without being asked for one."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def load_key(pem: bytes, where: str) -> PrivateKey:
    """Return the key in a text. Raises `PkiError`, which names `where` it was found."""
    try:
        key = load_pem_private_key(pem, None)
    except TypeError:
        raise PkiError(
            f"{where}: the key is protected by a password; write it without one "
            f"('openssl pkey -in {where} -out NEW'), for its owner alone (chmod 600)"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise PkiError(f"{where}: there is no private key in it that can be read") from None
    if not isinstance(key, PrivateKey):
        raise PkiError(f"{where}: keys of this kind are not used; make one of EC, Ed25519 or RSA")
    return key


def fits(key: PrivateKey, public: PublicKeyTypes) -> bool:
    """Whether a private key is the one that belongs to a public key."""
    return _public_bytes(key.public_key()) == _public_bytes(public)


def _public_bytes(public: PublicKeyTypes) -> bytes:
    return public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def signature_hash(key: PrivateKey) -> hashes.SHA256 | None:
    """Return what is signed with a key is hashed with; Ed25519 has a hash of its own."""
    return None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()


def key_words(public: object) -> str:
    """Return what kind of key it is, such as `EC secp256r1`."""
    if isinstance(public, ec.EllipticCurvePublicKey):
        return "EC P-256" if public.curve.name == "secp256r1" else f"EC {public.curve.name}"
    if isinstance(public, ed25519.Ed25519PublicKey):
        return "Ed25519"
    if isinstance(public, rsa.RSAPublicKey):
        return f"RSA, {public.key_size} bits"
    return "another kind of key"


def checked_public(public: object, where: str) -> PublicKey:
    """Return a public key, if certificates are made for its kind. Raises `PkiError`."""
    weak = isinstance(public, rsa.RSAPublicKey) and public.key_size < RSA_BITS_MIN
    if weak or not isinstance(public, PublicKey):
        raise PkiError(
            f"{where}: no certificate is made for its key ({key_words(public)}); use EC P-256, "
            f"Ed25519, or RSA of {RSA_BITS_MIN} bits or more"
        )
    return public


def type_of(key: PrivateKey) -> KeyType:
    """Return what a new key in the place of this one is."""
    return "ed25519" if isinstance(key, ed25519.Ed25519PrivateKey) else "ec-p256"
