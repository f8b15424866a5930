"""Certificates for tests, made in a directory: authorities, nodes, users, revocation lists."""

import datetime
import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLUSTER_ID = "0123456789abcdefghijk_"
OTHER_CLUSTER_ID = "9999999999abcdefghijk_"
DAY = datetime.timedelta(days=1)
BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key: the files, and the certificate itself."""

    certificate: Path
    key: Path
    value: x509.Certificate


@dataclass
class Authority:
    """An authority whose files are in a directory; the names of files begin with its name."""

    directory: Path
    name: str = "ca"
    cluster_id: str = CLUSTER_ID
    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )

    def __post_init__(self) -> None:
        self.subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, self.cluster_id),
                x509.NameAttribute(NameOID.COMMON_NAME, self.name),
            ]
        )
        public = self.key.public_key()
        usage = x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        self.value = (
            x509.CertificateBuilder()
            .subject_name(self.subject)
            .issuer_name(self.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now() - DAY)
            .not_valid_after(now() + 3_650 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        self.file = self.directory / f"{self.name}.pem"
        self.file.write_bytes(self.value.public_bytes(serialization.Encoding.PEM))

    def certify_by(self, root: "Authority") -> None:
        """Make this an authority below another one, in place of its own root."""
        self.value = (
            x509.CertificateBuilder()
            .subject_name(self.subject)
            .issuer_name(root.subject)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now() - DAY)
            .not_valid_after(now() + 3_650 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(root.key, hashes.SHA256())
        )
        self.file.write_bytes(self.value.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        file: str,
        *names: str,
        common_name: str = "",
        begin: datetime.timedelta = -DAY,
        end: datetime.timedelta = 365 * DAY,
        usage: tuple[x509.ObjectIdentifier, ...] = BOTH,
    ) -> Pair:
        """Make a certificate for names such as `URI:…`, `DNS:…`, `IP:…`."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = [_general(name) for name in names]
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name or file)]))
            .issuer_name(self.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now() + begin)
            .not_valid_after(now() + end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(list(usage)), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
        )
        if alternatives:
            builder = builder.add_extension(
                x509.SubjectAlternativeName(alternatives), critical=False
            )
        value = builder.sign(self.key, hashes.SHA256())
        pair = Pair(self.directory / f"{file}.pem", self.directory / f"{file}.key", value)
        pair.certificate.write_bytes(value.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        pair.key.chmod(0o600)
        return pair

    def node(self, name: str, *, file: str = "", **options: object) -> Pair:
        """Make a node's certificate, for this machine."""
        uri = f"URI:quorumlog://{self.cluster_id}/node/{name}"
        hosts = ("DNS:localhost", "IP:127.0.0.1")
        return self.issue(file or name, uri, *hosts, **options)  # type: ignore[arg-type]

    def user(self, name: str, *, file: str = "", **options: object) -> Pair:
        """Make a user's certificate."""
        uri = f"URI:quorumlog://{self.cluster_id}/user/{name}"
        usage = (ExtendedKeyUsageOID.CLIENT_AUTH,)
        return self.issue(file or name, uri, usage=usage, **options)  # type: ignore[arg-type]

    def revoke(
        self,
        *revoked: Pair,
        file: str = "crl",
        begin: datetime.timedelta = -DAY,
        end: datetime.timedelta = 30 * DAY,
        number: int | None = None,
    ) -> Path:
        """Write a revocation list and return its file."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.subject)
            .last_update(now() + begin)
            .next_update(now() + end)
        )
        if number is not None:
            builder = builder.add_extension(x509.CRLNumber(number), critical=False)
        for pair in revoked:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(pair.value.serial_number)
                .revocation_date(now() - DAY)
                .build()
            )
        path = self.directory / f"{file}.pem"
        path.write_bytes(
            builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
        return path


def _general(name: str) -> x509.GeneralName:
    kind, _, value = name.partition(":")
    if kind == "URI":
        return x509.UniformResourceIdentifier(value)
    if kind == "IP":
        return x509.IPAddress(ipaddress.ip_address(value))
    return x509.DNSName(value)
