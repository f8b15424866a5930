"""Users with passwords, clients that log in, and tokens, for tests of logins."""

import base64
import json

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from scramp import ScramClient, ScramMechanism

from quorumlog.auth.decoys import HmacDecoys
from quorumlog.auth.login import ConnectionLogin, LoginCounters, LoginEnvironment, Logins, Origin
from quorumlog.auth.oauthbearer import TokenRules, keys_of
from quorumlog.auth.remembered import Remembered
from quorumlog.auth.scram import Verifier
from quorumlog.model.security_config import SecurityConfig

LOOPBACK = Origin("127.0.0.1", is_encrypted=False, is_loopback=True)
TLS = Origin("192.0.2.7", is_encrypted=True, is_loopback=False)
SALT = b"0123456789abcdef"


class Users:
    """Verifiers as a node has them; counts what was asked."""

    def __init__(self, passwords=(), iterations=4096):
        self._found = {}
        self.asked = []
        for user, password in dict(passwords).items():
            self.add(user, password, iterations=iterations)

    def add(self, user, password, mechanisms=("SCRAM-SHA-256", "SCRAM-SHA-512"), iterations=4096):
        for mechanism in mechanisms:
            made = ScramMechanism(mechanism).make_auth_info(password, iterations, SALT)
            salt, stored_key, server_key, count = made
            self._found[user, mechanism] = Verifier(salt, stored_key, server_key, count)

    def remove(self, user):
        self._found = {key: one for key, one in self._found.items() if key[0] != user}

    def verifier(self, user, mechanism):
        self.asked.append((user, mechanism))
        return self._found.get((user, mechanism))


class CountedDecoys(HmacDecoys):
    """Decoys that say how often they were asked."""

    def __init__(self):
        super().__init__(b"secret")
        self.asked = []

    def verifier(self, user, mechanism):
        self.asked.append((user, mechanism))
        return super().verifier(user, mechanism)


class Clock:
    """Time, timers and threads that do what a test says; `events`: what logins have told."""

    def __init__(self):
        self.s = 1_000.0
        self.timers = []
        self.work = []
        self.events = []
        self.spent = []
        self.is_ready = True
        self.nonces = 0

    def now(self):
        return self.s

    def wall_ms(self):
        return int(self.s * 1000) + 1_700_000_000_000

    def later(self, seconds, call):
        timer = [self.s + seconds, call]
        self.timers.append(timer)
        return Timer(self.timers, timer)

    def sleep(self, seconds):
        self.s += seconds
        due = [timer for timer in self.timers if timer[0] <= self.s]
        self.timers[:] = [timer for timer in self.timers if timer not in due]
        for _, call in due:
            call()

    def run(self, work, done, failed, client):
        self.work.append((work, done, client))

    def forget(self, client):
        self.work = [one for one in self.work if one[2] is not client]

    def compute(self):
        work, self.work = self.work, []
        for one, done, _ in work:
            done(one())

    def nonce(self):
        self.nonces += 1
        return f"nonce{self.nonces}"

    @property
    def environment(self):
        return LoginEnvironment(
            self.now,
            self.wall_ms,
            self.later,
            self,
            self.nonce,
            lambda: self.is_ready,
            self.events.append,
            self.spent.append,
        )


class Timer:
    def __init__(self, timers, timer):
        self._timers, self._timer = timers, timer

    def cancel(self):
        if self._timer in self._timers:
            self._timers.remove(self._timer)


ALL = ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"]


def security(**keys):
    oauth = {"oauth_jwks_file": "k", "oauth_issuer": "issuer", "oauth_audience": "log"}
    return SecurityConfig(**{"mechanisms": ALL, **oauth, **keys})


def logins_of(clock, users, keys=(), **config):
    tokens = TokenRules(lambda: list(keys), "issuer", "log", "sub", clock.wall_ms)
    return Logins(
        security(**config),
        users,
        CountedDecoys(),
        Remembered(b"key"),
        tokens,
        clock.environment,
        LoginCounters(),
    )


def login_of(logins, origin=TLS, **principal):
    return ConnectionLogin(logins, origin, **principal)


def plain_message(user, password, authorized=""):
    return f"{authorized}\0{user}\0{password}".encode()


def bearer_message(token, authorized=""):
    return f"n,{authorized},\x01auth=Bearer {token}\x01\x01".encode()


def scram_login(login, user, password, mechanism="SCRAM-SHA-256"):
    """Log in by scramp's client; return all answers."""
    answers = []
    assert login.begin(mechanism)
    client = ScramClient([mechanism], user, password)
    login.step(client.get_client_first().encode(), answers.append)
    client.set_server_first(answers[0].data.decode())
    login.step(client.get_client_final().encode(), answers.append)
    if len(answers) > 1 and hasattr(answers[1], "principal"):
        client.set_server_final(answers[1].data.decode())
    return answers


def _base64(number, size):
    return base64.urlsafe_b64encode(number.to_bytes(size, "big")).rstrip(b"=").decode()


class Issuer:
    """Signs tokens by an RSA, an EC and an Ed25519 key."""

    def __init__(self, now_ms):
        self._now_ms = now_ms
        self.keys = {
            "RS256": rsa.generate_private_key(65537, 2048),
            "ES256": ec.generate_private_key(ec.SECP256R1()),
            "EdDSA": ed25519.Ed25519PrivateKey.generate(),
        }

    @property
    def entries(self):
        return [
            json.loads(jwt.get_algorithm_by_name(name).to_jwk(key.public_key())) | {"kid": name}
            for name, key in self.keys.items()
        ]

    @property
    def jwks(self):
        return json.dumps({"keys": self.entries}).encode()

    @property
    def public(self):
        return keys_of(self.jwks, "keys.json")

    def claims(self, **changes):
        now = self._now_ms() / 1000
        claims = {"iss": "issuer", "aud": "log", "sub": "alice", "exp": now + 60, "iat": now}
        return {key: one for key, one in {**claims, **changes}.items() if one is not None}

    def token(self, algorithm="RS256", kid="", **changes):
        claims = self.claims(**changes)
        headers = {"kid": kid or algorithm}
        return jwt.encode(claims, self.keys[algorithm], algorithm, headers=headers)
