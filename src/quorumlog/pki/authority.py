"""The directory of a certificate authority, and what is done with it.

ca.pem, ca.key   its certificate, which everybody gets, and its key, which nobody gets
ca.crl           the list of revoked certificates, for the nodes
revoked.json     what that list is made from
issued/          a copy of every certificate, so that it can be revoked by name
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from quorumlog.model.wording import there_is_no
from quorumlog.pki import files
from quorumlog.pki.errors import PkiError
from quorumlog.pki.files import Pair
from quorumlog.pki.issue import (
    Authority,
    Revoked,
    cluster_id_of,
    hosts_of,
    is_signed_by,
    issue,
    load_authority,
    make_authority,
    make_crl,
    make_request,
    pem_of,
    read_request,
    serial_text,
    subject_of,
)
from quorumlog.pki.keys import KeyType, PublicKey, fits, key_pem, load_key, new_key, type_of
from quorumlog.pki.names import RandomBytes, Subject, node_subject, user_subject
from quorumlog.pki.pem import certificates_in, load_request
from quorumlog.pki.revocations import (
    Revocations,
    RevokedCertificate,
    dump_revocations,
    load_revocations,
)

CA_NAME: Final = "ca"
CRL_NAME: Final = "ca.crl"
REVOKED_NAME: Final = "revoked.json"
ISSUED_NAME: Final = "issued"
ISSUED: Final = re.compile(r"(?P<kind>node|user)-(?P<name>.+)-(?P<serial>[0-9a-f]{40})\.pem")
SERIAL: Final = re.compile(r"[0-9a-fA-F]{8,40}")
ISSUED_MAX: Final = 100_000


class Made(NamedTuple):
    """A certificate that was made, and its files.

    `former`: the one that it replaces. `finished`: it is that of an earlier renewal, which was
    interrupted.
    """

    subject: Subject
    certificate: x509.Certificate
    pair: Pair
    former: x509.Certificate | None = None
    finished: bool = False


class Requested(NamedTuple):
    """What a request asks for, checked: whom the certificate is for, and whose key it has."""

    subject: Subject
    public: PublicKey


class AuthorityDirectory:
    """An authority with its files. All methods raise `PkiError`."""

    def __init__(self, directory: Path, now: datetime, random_bytes: RandomBytes) -> None:
        self.directory = directory
        self.pair = files.pair_in(directory, CA_NAME)
        self.crl_file = directory / CRL_NAME
        self._revoked_file = directory / REVOKED_NAME
        self._issued = directory / ISSUED_NAME
        self._now = now
        self._random_bytes = random_bytes

    def make(self, cluster_id: str, key_type: KeyType, days: int, *, force: bool) -> Authority:
        """Make the authority of a cluster."""
        files.make_directory(self.directory)
        with files.locked(self.directory):
            if not force:
                files.check_free(self.pair)
            made = make_authority(
                cluster_id, new_key(key_type), days, self._now, self._random_bytes
            )
            files.write_pair(self.pair, pem_of(made.certificate), key_pem(made.key), force=force)
        return made

    def cluster_id(self) -> str:
        """Return the id of the cluster whose authority it is."""
        with self._opened() as authority:
            return authority.cluster_id

    def issue(
        self, subject: Subject, pair: Pair, key_type: KeyType, days: int, *, force: bool
    ) -> Made:
        """Make a key and a certificate for a node or a user."""
        with self._opened() as authority, self._beside(pair):
            if not force:
                files.check_free(pair)
            key = new_key(key_type)
            certificate = self._issued_by(authority, subject, key.public_key(), days)
            files.write_pair(pair, pem_of(certificate), key_pem(key), force=force)
        return Made(subject, certificate, pair)

    def renew(
        self, pair: Pair, hosts: list[str] | None, key_type: KeyType | None, days: int
    ) -> Made:
        """Put a new key and certificate of the same names in the place of a pair.

        `hosts` in place of those of the certificate, if given; `key_type` None: of the same kind.
        If an earlier renewal was killed between the two files, it is finished instead.
        """
        with self._opened() as authority, self._beside(pair):
            old_key = load_key(files.read(pair.key), str(pair.key))
            if waiting := _waiting(pair):
                subject = subject_of(waiting)
                if subject is not None and fits(old_key, waiting.public_key()):
                    files.finish_pair(pair)
                    return Made(subject, waiting, pair, finished=True)
            (former, *_) = certificates_in(files.read(pair.certificate), str(pair.certificate))
            subject = self._renewed(authority, former, pair, hosts)
            key = new_key(key_type or type_of(old_key))
            certificate = self._issued_by(authority, subject, key.public_key(), days)
            files.write_pair(pair, pem_of(certificate), key_pem(key), force=True)
        return Made(subject, certificate, pair, former)

    def requested(self, request_file: Path) -> Requested:
        """Return what a request asks for, if this authority may sign it."""
        with self._opened() as authority:
            where = str(request_file)
            request = load_request(files.read(request_file), where)
            return Requested(*read_request(request, authority.cluster_id, where))

    def sign(self, requested: Requested, target: Path, days: int, *, force: bool) -> Made:
        """Make the certificate that a request asked for, and write it to `target`."""
        with self._opened() as authority:
            if not force and target.exists():
                raise PkiError(f"{target} exists and is kept; replace it with --force")
            subject, public = requested
            certificate = self._issued_by(authority, subject, public, days)
            write = files.replace if force else files.write_new
            write(target, pem_of(certificate), files.CERTIFICATE_MODE)
        return Made(subject, certificate, Pair(target, target))

    def revoke(self, wanted: list[str], crl_days: int) -> list[x509.Certificate]:
        """Revoke certificates, and make the list for the nodes; return those newly revoked.

        `wanted`: files of certificates, `node/NAME`, `user/NAME`, or serial numbers in hex. A name
        means all its certificates that have not expired.
        """
        with self._opened() as authority:
            found = [one for text in wanted for one in self._wanted(authority, text)]
            known = self._revocations()
            listed = {one.serial for one in known.revoked}
            fresh = {serial_text(one): one for one in found if serial_text(one) not in listed}
            more = [
                RevokedCertificate(serial, path_of(one), self._now, one.not_valid_after_utc)
                for serial, one in fresh.items()
            ]
            self._write_crl(authority, known.with_more(more, self._now), crl_days)
        return list(fresh.values())

    def write_crl(self, days: int) -> int:
        """Make the list of revoked certificates anew; return how many it has."""
        with self._opened() as authority:
            content = self._revocations().with_more([], self._now)
            self._write_crl(authority, content, days)
        return len(content.revoked)

    # -- steps ------------------------------------------------------------------------------

    @contextmanager
    def _opened(self) -> Iterator[Authority]:
        """Have the authority, and nobody else meanwhile."""
        if not self.pair.certificate.exists():
            raise PkiError(
                f"{self.directory} has no certificate authority (no {self.pair.certificate.name}): "
                "give --dir DIR, the directory of the authority, such as prod/ca after 'quorumlog "
                "cluster init --dir prod'. For a cluster that has none yet, 'quorumlog cert ca "
                f"--dir {self.directory}' makes one"
            )
        if not self.pair.key.exists():
            raise PkiError(
                f"{self.pair.key} is not here: run this where the authority's key is, or make a "
                "request here ('quorumlog cert csr') and sign it there ('quorumlog cert sign')"
            )
        with files.locked(self.directory):
            if files.others_may(self.pair.key):
                raise PkiError(
                    f"others may read or write {self.pair.key}: 'chmod 600 {self.pair.key}', and "
                    "make a new authority unless you are sure that nobody has read it"
                )
            certificates = certificates_in(
                files.read(self.pair.certificate), str(self.pair.certificate)
            )
            key = load_key(files.read(self.pair.key), str(self.pair.key))
            yield load_authority(certificates, key, str(self.pair.certificate))

    @contextmanager
    def _beside(self, pair: Pair) -> Iterator[None]:
        """Have the directory of a pair, if it is another one."""
        directory = pair.key.parent
        files.make_directory(directory)
        if directory.resolve() == self.directory.resolve():
            yield
            return
        with files.locked(directory):
            yield

    def _issued_by(
        self,
        authority: Authority,
        subject: Subject,
        public: PublicKey,
        days: int,
    ) -> x509.Certificate:
        """Make a certificate and keep a copy: none is given away that could not be revoked."""
        certificate = issue(authority, subject, public, days, self._now, self._random_bytes)
        files.make_directory(self._issued)
        name = f"{subject.kind}-{subject.name}-{serial_text(certificate)}.pem"
        self._forget_expired(subject)
        if len(files.list_names(self._issued, ".pem")) >= ISSUED_MAX:
            raise PkiError(
                f"{self._issued} has {ISSUED_MAX:,} certificates; remove those that have expired"
            )
        files.write_new(self._issued / name, pem_of(certificate), files.CERTIFICATE_MODE)
        return certificate

    def _forget_expired(self, subject: Subject) -> None:
        for path, certificate in self._issued_to(subject.path):
            if certificate.not_valid_after_utc <= self._now:
                files.remove(path)

    def _issued_to(self, wanted: str) -> Iterator[tuple[Path, x509.Certificate]]:
        """Yield certificates by their subject (`user/alice`), or by their serial number."""
        for name in files.list_names(self._issued, ".pem"):
            match = ISSUED.fullmatch(name)
            if match and wanted in (f"{match['kind']}/{match['name']}", match["serial"]):
                path = self._issued / name
                for certificate in certificates_in(files.read(path), str(path)):
                    yield path, certificate

    def _wanted(self, authority: Authority, text: str) -> list[x509.Certificate]:
        if text.startswith(("node/", "user/")):
            return self._of_name(authority, text)
        path = Path(text)
        if path.is_file():
            return [
                self._own(authority, one, text) for one in certificates_in(files.read(path), text)
            ]
        if SERIAL.fullmatch(text):
            serial = text.lower().rjust(40, "0")
            found = [one for _, one in self._issued_to(serial)]
            if found:
                return found
        raise PkiError(
            f"{text!r} is neither a file of a certificate, nor node/NAME or user/NAME, nor the "
            "serial number of a certificate that was made here"
        )

    def _of_name(self, authority: Authority, text: str) -> list[x509.Certificate]:
        kind, _, name = text.partition("/")
        if kind == "user":
            text = user_subject(name, authority.cluster_id).path
        found = [one for _, one in self._issued_to(text) if one.not_valid_after_utc > self._now]
        if not found:
            matches = map(ISSUED.fullmatch, files.list_names(self._issued, ".pem"))
            known = {f"{one['kind']}/{one['name']}" for one in matches if one}
            shown = f"ls {self._issued}"
            raise PkiError(there_is_no("valid certificate of", [text], known, shown))
        return found

    def _own(
        self, authority: Authority, certificate: x509.Certificate, where: str
    ) -> x509.Certificate:
        """Return a certificate, if this authority has signed it."""
        if not is_signed_by(certificate, authority.certificate):
            raise PkiError(
                f"{where}: another authority has signed it ({certificate.issuer.rfc4514_string()}),"
                " which has to revoke it"
            )
        return certificate

    def _renewed(
        self,
        authority: Authority,
        certificate: x509.Certificate,
        pair: Pair,
        hosts: list[str] | None,
    ) -> Subject:
        """Return whom a pair is for, checked anew, with other hosts if these are given."""
        where = str(pair.certificate)
        found = subject_of(certificate)
        if found is None or found.cluster_id != authority.cluster_id:
            raise PkiError(
                f"{where}: it is of no node or user of cluster {authority.cluster_id}, whose "
                "authority this is"
            )
        if found.kind == "node":
            return node_subject(found.name, found.cluster_id, hosts or hosts_of(certificate))
        if hosts:
            raise PkiError(f"{where}: it is a client's, which has no hosts: leave --host out")
        return user_subject(found.name, found.cluster_id)

    def _revocations(self) -> Revocations:
        if not self._revoked_file.exists():
            return Revocations()
        return load_revocations(files.read(self._revoked_file), str(self._revoked_file))

    def _write_crl(self, authority: Authority, content: Revocations, days: int) -> None:
        """Write the file first: a list that is lost can be made again from it."""
        revoked = [Revoked(int(one.serial, 16), one.at) for one in content.revoked]
        crl = make_crl(authority, content.number, revoked, days, self._now)
        files.replace(self._revoked_file, dump_revocations(content), files.CERTIFICATE_MODE)
        files.replace(self.crl_file, crl.public_bytes(Encoding.PEM), files.CERTIFICATE_MODE)


def _waiting(pair: Pair) -> x509.Certificate | None:
    """Return the certificate that an interrupted renewal has written, but not placed.

    One that cannot be read is none: a key is only placed once its certificate is whole on disk.
    """
    content = files.unplaced(pair.certificate)
    if content is None:
        return None
    try:
        return certificates_in(content, str(files.beside(pair.certificate)))[0]
    except PkiError:
        return None


def path_of(certificate: x509.Certificate) -> str:
    """Return whom a certificate is for, such as `user/alice`, or its subject if it is not ours."""
    found = subject_of(certificate)
    return found.path if found else certificate.subject.rfc4514_string()


def write_request(subject: Subject, pair: Pair, key_type: KeyType, *, force: bool) -> Path:
    """Make a key and a request for its certificate; return the file of the request.

    `pair`: where key and, later, certificate are. Raises `PkiError`.
    """
    directory = pair.key.parent
    request_file = pair.certificate.with_suffix(".csr")
    files.make_directory(directory)
    with files.locked(directory):
        if not force:
            files.check_free(Pair(request_file, pair.key))
        key = new_key(key_type)
        request = pem_of(make_request(subject, key))
        files.write_pair(Pair(request_file, pair.key), request, key_pem(key), force=force)
    return request_file


def cluster_id_beside(directory: Path) -> str:
    """Return the id of the cluster whose ca.pem is in a directory. Raises `PkiError`."""
    path = files.pair_in(directory, CA_NAME).certificate
    if not path.exists():
        raise PkiError(
            f"{path} is not here: copy ca.pem from the machine of the authority first; it says "
            "which cluster this is"
        )
    found = {cluster_id_of(one) for one in certificates_in(files.read(path), str(path))} - {""}
    if len(found) != 1:
        raise PkiError(f"{path}: it is the authority of {len(found) or 'no'} quorumlog clusters")
    return found.pop()
