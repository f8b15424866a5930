"""SASL mechanisms by themselves: what they take for a login, and all that they do not."""

import base64
import hmac
import json
from random import Random

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st
from scramp import ScramClient, ScramMechanism

from login_access import (
    SALT,
    Clock,
    CountedDecoys,
    Issuer,
    Users,
    bearer_message,
    plain_message,
)
from quorumlog.auth.decoys import HmacDecoys, LikeUsers, Parameters
from quorumlog.auth.oauthbearer import OauthbearerExchange, TokenRules, keys_of
from quorumlog.auth.plain import PlainExchange, fits
from quorumlog.auth.remembered import REMEMBERED_MAX, REMEMBERED_S, Remembered
from quorumlog.auth.sasl import Compute, Continue, Done, Failed, Reason
from quorumlog.auth.scram import Verifier
from quorumlog.auth.scram_exchange import ScramExchange
from quorumlog.auth.verifiers import PASSWORD_MAX
from quorumlog.model.errors import ConfigError

SCRAM = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
USERS = Users({"alice": "secret", "bob": "other"})


def scram(mechanism="SCRAM-SHA-256", users=USERS, nonce="server-nonce", decoys=None):
    return ScramExchange(mechanism, users, decoys or HmacDecoys(b"secret"), nonce)


def scram_pair(exchange, user, password, mechanism="SCRAM-SHA-256"):
    """Return what both messages of a client lead to."""
    client = ScramClient([mechanism], user, password)
    first = exchange.step(client.get_client_first().encode())
    client.set_server_first(first.data.decode())
    second = exchange.step(client.get_client_final().encode())
    if isinstance(second, Done):
        client.set_server_final(second.data.decode())
    return first, second


# -- SCRAM --------------------------------------------------------------------------------


def test_scram_answers_as_rfc_7677_has_it():
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    info = ScramMechanism("SCRAM-SHA-256").make_auth_info("pencil", 4096, salt)
    users = Users()
    users._found["user", "SCRAM-SHA-256"] = Verifier(*info)
    exchange = scram(users=users, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert exchange.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == Continue(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert exchange.step(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    ) == Done("user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("mechanism", SCRAM)
def test_scram_lets_in_who_knows_the_password_and_nobody_else(mechanism):
    assert scram_pair(scram(mechanism), "alice", "secret", mechanism)[1].user == "alice"
    for user, password, reason in (
        ("alice", "other", Reason.PASSWORD),
        ("bob", "secret", Reason.PASSWORD),
        ("carol", "secret", Reason.UNKNOWN_USER),
    ):
        first, second = scram_pair(scram(mechanism), user, password, mechanism)
        assert isinstance(first, Continue)
        assert second[0] is reason


def test_scram_takes_names_and_passwords_that_look_alike_as_one():
    users = Users({"I\u00aaX, =": "\u2168"})  # as RFC 4013 maps them
    users._found = {("IaX, =", key[1]): one for key, one in users._found.items()}
    assert scram_pair(scram(users=users), "I\u00adaX, =", "IX")[1].user == "IaX, ="


@pytest.mark.parametrize("mechanism", SCRAM)
def test_an_unknown_user_takes_the_same_way_as_a_known_one(mechanism):
    ways = []
    for user in ("alice", "carol"):
        users, decoys = Users({"alice": "secret"}), CountedDecoys()
        exchange = scram(mechanism, users, decoys=decoys)
        first, second = scram_pair(exchange, user, "wrong", mechanism)
        message = dict(part.split("=", 1) for part in first.data.decode().split(","))
        counts = (users.asked.count((user, mechanism)), decoys.asked.count((user, mechanism)))
        ways.append((counts, len(first.data) - len(message["i"]), second.text))
    assert ways[0] == ways[1]
    assert ways[0][0] == (1, 1)


def test_a_user_who_does_not_exist_has_the_same_salt_each_time_and_another_one_elsewhere():
    def salt(user, secret=b"secret", mechanism="SCRAM-SHA-256"):
        return HmacDecoys(secret).verifier(user, mechanism).salt

    assert salt("carol") == salt("carol")
    others = (salt("dave"), salt("carol", b"2"), salt("carol", mechanism=SCRAM[1]))
    assert len({salt("carol"), *others}) == 4
    assert len(salt("carol")) == len(SALT)


@pytest.mark.parametrize("mechanism", SCRAM)
def test_a_user_who_does_not_exist_is_like_the_others_on_each_node(mechanism):
    like = LikeUsers(b"of the cluster", {mechanism: Parameters(5_000, 100)})
    one, other = (
        HmacDecoys(own, lambda: like).verifier("carol", mechanism) for own in (b"1", b"2")
    )
    assert one == other
    assert (one.iterations, len(one.salt)) == (5_000, 100)
    assert len(set(one.salt)) > 50, "no part of it comes twice"


def test_a_nonce_other_than_the_servers_is_refused_even_with_the_right_proof():
    first, second = (ScramClient(SCRAM[:1], "alice", "secret") for _ in range(2))
    exchange, other = scram(nonce="one"), scram(nonce="two")
    exchange.step(first.get_client_first().encode())
    second.set_server_first(other.step(second.get_client_first().encode()).data.decode())
    assert exchange.step(second.get_client_final().encode()).reason is Reason.MALFORMED


@pytest.mark.parametrize(
    "header", [b"p=tls-unique,,", b"p=tls-server-end-point,,", b"p=tls-exporter,,"]
)
def test_a_client_that_demands_channel_binding_is_refused(header):
    assert scram().step(header + b"n=alice,r=abc").reason is Reason.CHANNEL_BINDING
    assert isinstance(scram().step(b"y,,n=alice,r=abc"), Continue)  # it could, and need not


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,a=bob,n=alice,r=abc",
        b"n,,n=alice",
        b"n,,r=abc,n=alice",
        b"n,,m=x,n=alice,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=a=b,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=al\0ice,r=abc",
        b"n,,n=\xff,r=abc",
        b"n,,n=" + b"a" * 2048 + b",r=abc",
        "n,,n=\u0627a,r=abc".encode(),
    ],
)
def test_first_messages_that_are_none_are_refused(message):
    assert scram().step(message).reason is Reason.MALFORMED


def mutilations(message, count=3_000):
    """Yield what is left of a message if bytes of it are removed, doubled, changed or put in."""
    chosen = Random(0)
    put = [
        b"",
        b"\0",
        b",",
        b"=",
        b"\xff",
        b"\x01",
        "\u0627".encode(),
        b"p=",
        b"n=",
        b"A",
        b"a" * 70,
    ]
    for _ in range(count):
        found = message
        for _ in range(chosen.randint(1, 3)):
            place, length = chosen.randint(0, len(found)), chosen.choice([0, 0, 1, 1, 2, 9, 50])
            cut = chosen.choice([chosen.choice(put), found[place : place + length] * 2])
            found = found[:place] + cut + found[place + length :]
        if found != message:
            yield found


def test_mutilated_messages_of_scram_let_nobody_in():
    first = b"n,,n=alice,r=abcdef"
    outcomes = set()
    for message in mutilations(first):
        outcomes.add(type(scram().step(message)))
    assert outcomes == {Continue, Failed}
    final = b"c=biws,r=abcdefserver-nonce,p=" + base64.b64encode(bytes(32))
    reasons = set()
    for message in mutilations(final):
        exchange = scram()
        exchange.step(first)
        reasons.add(exchange.step(message).reason)
    assert reasons == {Reason.MALFORMED, Reason.PASSWORD, Reason.CHANNEL_BINDING}


@settings(max_examples=200)
@given(st.binary(max_size=64) | st.text(max_size=64).map(str.encode))
def test_any_bytes_are_an_answer_to_the_first_message_or_a_refusal(message):
    for exchange in (scram(), plain(Clock()), bearer()):
        assert isinstance(exchange.step(message), Failed)


# -- PLAIN --------------------------------------------------------------------------------


def plain(clock, users=USERS, remembered=None, decoys=None):
    decoys = decoys or HmacDecoys(b"secret")
    return PlainExchange(users, decoys, remembered or Remembered(b"key"), clock.now)


def computed(step):
    return step.then(step.work()) if isinstance(step, Compute) else step


def test_plain_lets_in_who_knows_the_password_and_nobody_else():
    users = Users({"alice": "secret"})
    users.add("dave", "strong", SCRAM[1:])
    for user, password, expected in (
        ("alice", "secret", Done("alice")),
        ("dave", "strong", Done("dave")),
        ("alice", "wrong", Failed(Reason.PASSWORD)),
        ("carol", "secret", Failed(Reason.UNKNOWN_USER)),
    ):
        step = plain(Clock(), users).step(plain_message(user, password))
        assert isinstance(step, Compute), "the password is checked on a thread"
        assert computed(step) == expected
    assert computed(plain(Clock()).step(plain_message("bob", "other", "bob"))) == Done("bob")
    step = plain(Clock()).step(plain_message("bob", "other", "alice"))
    assert step.reason is Reason.OTHER_USER
    for message in (plain_message("bob", ""), plain_message("bob", "x" * 2048), b"\0b\0\0"):
        assert plain(Clock()).step(message).reason is Reason.MALFORMED


def test_a_long_name_or_password_is_refused_before_it_is_prepared(monkeypatch):
    """Preparing a text of 2 KiB takes milliseconds, and anybody may send one."""

    def prepared(*given):
        raise AssertionError(given)

    monkeypatch.setattr("scramp.core.saslprep", prepared)
    monkeypatch.setattr("quorumlog.auth.verifiers.stringprep.in_table_b1", prepared)
    for name in ("ü" * 129, "x" * 1_000, "=2C" * 129):
        step = scram().step(f"n,,n={name},r=abc".encode())
        assert step == Failed(Reason.MALFORMED, "a name of more than 128 characters")
    step = plain(Clock()).step(plain_message("alice", "x" * (PASSWORD_MAX + 1)))
    assert step.reason is Reason.MALFORMED
    monkeypatch.undo()
    assert isinstance(scram().step(f"n,,n={'=2C' * 128},r=abc".encode()), Continue)
    assert isinstance(plain(Clock()).step(plain_message("alice", "x" * PASSWORD_MAX)), Compute)


def test_plain_computes_as_much_for_an_unknown_user(monkeypatch):
    calls = []
    monkeypatch.setattr("quorumlog.auth.plain.fits", lambda *given: calls.append(given) or False)
    ways = []
    for user in ("alice", "carol"):
        users, decoys = Users({"alice": "secret"}), CountedDecoys()
        step = plain(Clock(), users, decoys=decoys).step(plain_message(user, "wrong"))
        assert isinstance(computed(step), Failed)
        ways.append((len(users.asked), len(decoys.asked), calls[-1][:2]))
    assert ways[0] == ways[1]
    assert len(calls) == 2


def test_a_right_password_is_known_for_five_minutes_until_it_is_changed():
    clock, remembered, users = Clock(), Remembered(b"key"), Users({"alice": "secret"})
    message = plain_message("alice", "secret")
    assert computed(plain(clock, users, remembered).step(message)) == Done("alice")
    assert plain(clock, users, remembered).step(message) == Done("alice")
    assert isinstance(plain(clock, users, remembered).step(plain_message("alice", "x")), Compute)
    clock.s += REMEMBERED_S - 1
    assert plain(clock, users, remembered).step(message) == Done("alice")
    clock.s += 1
    assert computed(plain(clock, users, remembered).step(message)) == Done("alice")
    users.add("alice", "new")
    assert computed(plain(clock, users, remembered).step(message)) == Failed(Reason.PASSWORD)
    users.remove("alice")
    assert computed(plain(clock, users, remembered).step(message)) == Failed(Reason.UNKNOWN_USER)


def test_the_passwords_that_are_known_are_bounded():
    remembered, verifier = Remembered(b"key"), USERS.verifier("alice", SCRAM[0])
    marks = [remembered.mark_of("u", str(number), verifier) for number in range(REMEMBERED_MAX + 1)]
    for mark in marks:
        remembered.add(mark, 0.0)
    assert [remembered.has(marks[at], 1.0) for at in (0, 1, -1)] == [False, True, True]
    assert remembered.mark_of("ab", "c", verifier) != remembered.mark_of("a", "bc", verifier)


def test_mutilated_messages_of_plain_let_nobody_in():
    outcomes = set()
    for message in mutilations(plain_message("alice", "wrong")):
        step = plain(Clock()).step(message)
        outcomes.add(type(step))
        assert isinstance(step, Failed) or message.decode().split("\0")[2] != "secret"
    assert outcomes == {Failed, Compute}
    assert not fits("wrong", SCRAM[0], USERS.verifier("alice", SCRAM[0]))


# -- OAUTHBEARER --------------------------------------------------------------------------

CLOCK = Clock()
ISSUER = Issuer(CLOCK.wall_ms)
PUBLIC = ISSUER.public


def bearer(keys=PUBLIC, claim="sub"):
    return OauthbearerExchange(TokenRules(lambda: keys, "issuer", "log", claim, CLOCK.wall_ms))


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_a_signed_token_says_who_somebody_is_and_until_when(algorithm):
    step = bearer().step(bearer_message(ISSUER.token(algorithm)))
    assert step == Done("alice", expires_ms=CLOCK.wall_ms() + 60_000)


def test_the_name_is_that_of_the_claim_that_is_configured():
    token = ISSUER.token(sub="00u1", email="alice@example.org")
    step = bearer(claim="email").step(bearer_message(token, "a=alice@example.org"))
    assert step.user == "alice@example.org"
    assert bearer(claim="email").step(bearer_message(ISSUER.token())).reason is Reason.TOKEN
    step = bearer().step(bearer_message(ISSUER.token(), "a=bob"))
    assert step.reason is Reason.OTHER_USER


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "other"},
        {"iss": None},
        {"aud": "other"},
        {"aud": None},
        {"sub": None},
        {"exp": None},
        {"exp": CLOCK.wall_ms() / 1000},
        {"exp": "2100"},
        {"nbf": CLOCK.wall_ms() / 1000 + 40},
        {"iat": CLOCK.wall_ms() / 1000 + 40},
        {"algorithm": "ES256", "kid": "RS256"},
        {"kid": "unknown"},
    ],
    ids=str,
)
def test_tokens_that_say_something_else_are_refused(changes):
    step = bearer().step(bearer_message(ISSUER.token(**changes)))
    assert step.reason is Reason.TOKEN


@pytest.mark.parametrize("name", ["\uff41lice", "a" * 129, "a\nb", "*", "ali\ufffdce"])
def test_subjects_that_are_no_names_of_users_are_refused(name):
    """NFKC makes several subjects alike: the first one would be alice."""
    step = bearer().step(bearer_message(ISSUER.token(sub=name)))
    assert step.reason is Reason.TOKEN
    assert "its claim sub is no user's name" in step.text


def test_keys_for_encryption_are_no_keys_of_tokens():
    entries = [ISSUER.entries[0], {"kty": "RSA", "use": "enc", "kid": "e", "alg": "RSA-OAEP"}]
    assert [one.key_id for one in keys_of(json.dumps({"keys": entries}).encode(), "k")] == ["RS256"]


def forged():
    """Yield tokens that another than the issuer could make."""
    claims, public = ISSUER.claims(), ISSUER.keys["RS256"].public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    parts = [json.dumps({"alg": "HS256", "kid": "RS256"}).encode(), json.dumps(claims).encode()]
    signed = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    mac = base64.urlsafe_b64encode(hmac.digest(pem, signed, "sha256")).rstrip(b"=")
    yield (signed + b"." + mac).decode()  # the public key as a shared secret
    yield jwt.encode(claims, None, "none", headers={"kid": "RS256"})
    other = Issuer(CLOCK.wall_ms)
    yield other.token()
    for more in ({"jwk": other.entries[0]}, {"jku": "http://127.0.0.1/"}):
        headers = {"kid": "RS256", **more}
        yield jwt.encode(claims, other.keys["RS256"], "RS256", headers=headers)
    own = ISSUER.keys["RS256"]
    yield jwt.encode(claims, own, "RS256", headers={"kid": "RS256", "crit": ["x"], "x": 1})
    yield jwt.encode(claims, own, "PS256", headers={"kid": "RS256"})
    token = ISSUER.token()
    yield token[:-4]
    yield token.rpartition(".")[0] + "."
    yield "a.b.c"


@pytest.mark.parametrize("token", list(forged()))
def test_forged_tokens_are_refused(token):
    assert bearer().step(bearer_message(token)).reason is Reason.TOKEN


def test_mutilated_messages_of_oauthbearer_let_nobody_else_in():
    reasons = set()
    for message in mutilations(bearer_message(ISSUER.token(sub="bob")), 1_000):
        step = bearer().step(message)
        if isinstance(step, Failed):
            reasons.add(step.reason)
        else:  # such as another word before the token
            assert step.user == "bob"
    assert reasons >= {Reason.MALFORMED, Reason.TOKEN}


def test_a_single_key_needs_no_id():
    entry = {key: one for key, one in ISSUER.entries[0].items() if key != "kid"}
    keys = keys_of(json.dumps({"keys": [entry]}).encode(), "k")
    token = jwt.encode(ISSUER.claims(), ISSUER.keys["RS256"], "RS256")
    assert bearer(keys).step(bearer_message(token)).user == "alice"
    assert bearer(PUBLIC).step(bearer_message(token)).reason is Reason.TOKEN


RSA = ISSUER.entries[0]


@pytest.mark.parametrize(
    ("jwks", "reason"),
    [
        (b"{", "k is no JWKS"),
        (b"\xff", "k is no JWKS"),
        (b"[]", "k is no JWKS"),
        (b"[" * 200_000, "k is no JWKS"),
        (b'{"keys": [7]}', "k is no JWKS"),
        ({"keys": [RSA | {"kid": str(number)} for number in range(65)]}, "k has 65 keys; 64 are"),
        ({"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}, "key number 1 is of 'oct'"),
        ({"keys": [{"kty": ["RSA"]}]}, "key number 1 is of"),
        ({"keys": [RSA | {"alg": "HS256"}]}, "key number 1 has alg 'HS256'; it can have RS256,"),
        ({"keys": [RSA | {"use": "enc"}]}, "has no key for signatures"),
        ({"keys": [RSA | {"d": "AQ"}]}, "key number 1 is no public key, but a private one"),
        ({"keys": [RSA | {"n": "AQ"}]}, "key number 1 cannot be used"),
        ({"keys": [RSA, RSA]}, "several keys have the same `kid`, or none"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_keys_that_cannot_be_used_are_refused_in_words(jwks, reason):
    raw = jwks if isinstance(jwks, bytes) else json.dumps(jwks).encode()
    with pytest.raises(ConfigError, match=r"^k") as refusal:
        keys_of(raw, "k")
    assert reason in str(refusal.value)
