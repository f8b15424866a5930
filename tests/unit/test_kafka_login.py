"""A login on the port for Kafka's clients, where the broker is not what it says."""

import socket
import struct

import pytest

from quorumlog.client import Secret, Security, kafka_login
from quorumlog.model.errors import LoginError

FIRST = b"r=abcdef,s=MDEyMzQ1Njc4OWFi,i=4096"


def text(value):
    return struct.pack(">h", len(value)) + value


def handshake(error_code=0, *offered):
    return struct.pack(">hi", error_code, len(offered)) + b"".join(map(text, offered))


def told(data, error_code=0, words=None):
    said = struct.pack(">h", -1) if words is None else text(words)
    lifetime = bytes(8)
    return struct.pack(">h", error_code) + said + struct.pack(">i", len(data)) + data + lifetime


def log_in(monkeypatch, mechanism, *bodies, first_number=1):
    """Log in where the answers are these; return what the broker has got."""
    monkeypatch.setattr(kafka_login, "new_nonce", lambda: "abc")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for number, body in enumerate(bodies, first_number):
            theirs.sendall(struct.pack(">ii", 4 + len(body), number) + body)
        theirs.shutdown(socket.SHUT_WR)
        security = Security(mechanism=mechanism, user="bob", password=Secret("canary-7f3a"))
        kafka_login.log_in(ours, security)
        return theirs.recv(65_536)


def test_a_password_is_sent_after_the_mechanism_is_offered(monkeypatch):
    sent = log_in(monkeypatch, "PLAIN", handshake(0, b"PLAIN"), told(b""))
    assert sent.endswith(b"\0bob\0canary-7f3a")


@pytest.mark.parametrize(
    ("mechanism", "bodies", "said"),
    [
        ("PLAIN", [handshake(33, b"SCRAM-SHA-256", b"X")], "is not offered, but SCRAM-SHA-256, X"),
        ("PLAIN", [handshake(34)], "is not offered, but nothing"),
        ("PLAIN", [handshake(), told(b"", 58, b"login refused")], "login refused"),
        ("PLAIN", [handshake(), told(b"", 58)], "refused with error 58"),
        ("PLAIN", [handshake(), told(b"{}")], "login refused"),
        ("PLAIN", [b"\0"], "an answer ends early"),
        ("PLAIN", [handshake(), told(b"")[:6]], "an answer ends early"),
        ("SCRAM-SHA-256", [handshake(), told(b"x")], "first message is not RFC 5802's"),
        ("SCRAM-SHA-256", [handshake(), told(FIRST), told(b"v=AAAA")], "has not shown that it kno"),
        ("SCRAM-SHA-256", [handshake(), told(FIRST), told(b"")], "has not shown that it knows"),
    ],
)
def test_a_login_that_the_broker_refuses_or_cannot_answer_is_final(
    monkeypatch, mechanism, bodies, said
):
    with pytest.raises(LoginError, match=f"login of bob by {mechanism}: .*{said}") as refusal:
        log_in(monkeypatch, mechanism, *bodies)
    assert "canary" not in str(refusal.value)


def test_answers_that_are_none_are_refused(monkeypatch):
    with pytest.raises(LoginError, match="an answer to another request"):
        log_in(monkeypatch, "PLAIN", handshake(), first_number=2)
    monkeypatch.setattr(kafka_login, "ANSWER_BYTES_MAX", 9)
    with pytest.raises(LoginError, match="an answer of 10 bytes"):
        log_in(monkeypatch, "PLAIN", handshake())


def test_a_broker_that_has_no_time_may_be_asked_again(monkeypatch):
    """It closes the connection, as Kafka's clients take each answer for a refusal."""
    with pytest.raises(ConnectionResetError, match="closed the connection during the login"):
        log_in(monkeypatch, "PLAIN", handshake())
