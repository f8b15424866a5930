"""What `quorumlog cert show` and `quorumlog cert check` print."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from cryptography.x509 import Certificate
from rich.text import Text

from quorumlog.cli.output import BAD_STYLE, print_json, print_line, print_table
from quorumlog.model.wording import counted
from quorumlog.pki.check import authority_of
from quorumlog.pki.describe import Described, subject_words, time_words, utc_text
from quorumlog.pki.issue import AUTHORITY_NAME, cluster_id_of, serial_text
from quorumlog.pki.probe import Checked

SERIALS_SHOWN = 20
"""Of a revocation list; `--json` has all."""


def print_described(one: Described, now: datetime) -> None:
    """Print what a part of a file is, a line for each thing that is known."""
    left = f" ({time_words(one.expires - now)})" if one.expires else ""
    is_list = one.what == "revocation list"
    rows = [
        ("is", one.what),
        ("whose", one.subject),
        ("cluster", one.cluster_id),
        ("hosts", ", ".join(one.hosts)),
        ("used as", " and ".join(one.usages)),
        ("made" if is_list else "valid from", utc_text(one.valid_from) if one.valid_from else ""),
        (
            "next due" if is_list else "expires",
            f"{utc_text(one.expires)}{left}" if one.expires else "",
        ),
        ("key", f"{one.key}, in {one.key_file}" if one.key_file else one.key),
        ("signed by", one.issuer),
        ("serial", one.serial),
        ("SHA-256", one.sha256),
        ("revoked", _serials(one) if is_list else ""),
    ]
    shown: list[tuple[str, str | Text]] = [(name, value) for name, value in rows if value]
    if one.problem:
        shown.append(("problem", Text(one.problem, BAD_STYLE)))
    print_table(("FILE", one.file), shown)


def _serials(one: Described) -> str:
    more = len(one.revoked) - SERIALS_SHOWN
    and_more = f" and {more:,} more" if more > 0 else ""
    return " ".join(one.revoked[:SERIALS_SHOWN]) + and_more or "none"


def print_described_json(one: Described, now: datetime) -> None:
    """Print what a part of a file is as an object; times as in ISO 8601."""
    known = {key: value for key, value in asdict(one).items() if value or key == "file"}
    for key in ("valid_from", "expires"):
        if key in known:
            known[key] = known[key].isoformat()
    if one.expires is not None:
        known["expires_seconds"] = round((one.expires - now).total_seconds())
    print_json(known)


def print_checked(checked: Checked, now: datetime) -> None:
    """Print the parties and the servers as tables, what was found, and what comes of it."""
    if checked.parties:
        print_table(
            ("WHOSE", "EXPIRES", "SIGNED BY", "FILE"),
            [
                (one.label, *_signed(one.certificate, one.trusted, now), str(one.pair.certificate))
                for one in checked.parties
            ],
        )
    if checked.parties and checked.shown:
        print_line("")
    if checked.shown:
        print_table(
            ("SERVER", "SHOWS", "EXPIRES", "SIGNED BY"),
            [
                (
                    one.address,
                    subject_words(one.certificate),
                    *_signed(one.certificate, checked.trusted, now),
                )
                if one.certificate
                else (one.address, Text("nothing", BAD_STYLE), "", "")
                for one in checked.shown
            ],
        )
    for finding in checked.findings:
        print_line(f"{finding.level}: {finding.about}: {finding.text}")
    if checked.problems:
        print_line(counted(checked.problems, "problem"))
    else:
        print_line("all accept each other")


def _signed(
    certificate: Certificate, trusted: Sequence[Certificate], now: datetime
) -> tuple[str, str | Text]:
    left = time_words(certificate.not_valid_after_utc - now)
    signer = authority_of(certificate, trusted).removeprefix(f"{AUTHORITY_NAME} ")
    return left, signer or Text("nobody trusted", BAD_STYLE)


def print_checked_json(checked: Checked, now: datetime) -> None:
    """Print each party and server as an object, with what was found of it, and the rest."""
    for one in checked.parties:
        known = _certificate_object(one.certificate, one.trusted, now)
        print_json({"file": str(one.pair.certificate), "whose": one.label, **known})
    for shown in checked.shown:
        known = {"failure": shown.failure}
        if shown.certificate:
            certificate = shown.certificate
            known = _certificate_object(certificate, checked.trusted, now)
            known = {"whose": subject_words(certificate), **known}
        print_json({"server": shown.address, **known})
    for finding in checked.findings:
        print_json({finding.level: finding.text, "about": finding.about})


def _certificate_object(
    certificate: Certificate, trusted: Sequence[Certificate], now: datetime
) -> dict[str, object]:
    return {
        "cluster_id": cluster_id_of(certificate),
        "serial": serial_text(certificate),
        "expires": certificate.not_valid_after_utc.isoformat(),
        "expires_seconds": round((certificate.not_valid_after_utc - now).total_seconds()),
        "signed_by": authority_of(certificate, trusted) or None,
    }
