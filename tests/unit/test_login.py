"""Logins on a connection: what is offered where, how refusals are answered, what is bounded."""

import pytest

from login_access import (
    LOOPBACK,
    TLS,
    Clock,
    Issuer,
    Users,
    bearer_message,
    login_of,
    logins_of,
    plain_message,
    scram_login,
)
from quorumlog.auth.failure_delays import ENTRIES_MAX, FORGOTTEN_S, FailureDelays
from quorumlog.auth.login import (
    AGAIN_S,
    ANONYMOUS,
    BUSY_TEXT,
    CHANGE_GRACE_S,
    CHANGE_S,
    COMPUTED_MAX,
    LoggedIn,
    Origin,
    Refused,
)
from quorumlog.auth.sasl import MESSAGE_BYTES_MAX, Continue, Reason
from quorumlog.kafka.client_login import ClientLogin
from quorumlog.kafka.requests import ApiKey
from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.base import Hello
from quorumlog.model.messages.client import MetadataRequest
from quorumlog.service import login_gate
from quorumlog.service.login_gate import LoginGate
from quorumlog.wire.frame import Frame

REMOTE = Origin("192.0.2.7", is_encrypted=False, is_loopback=False)
SCRAM = ["SCRAM-SHA-256", "SCRAM-SHA-512"]


class World:
    """Logins of a node, whose users are alice and bob."""

    def __init__(self, **config):
        self.clock = Clock()
        self.users = Users({"alice": "secret", "bob": "other"})
        self.issuer = Issuer(self.clock.wall_ms) if config.pop("has_tokens", False) else None
        keys = self.issuer.public if self.issuer else ()
        self.logins = logins_of(self.clock, self.users, keys, **config)

    @property
    def counters(self):
        return self.logins.counters

    def login(self, origin=TLS, **principal):
        return login_of(self.logins, origin, **principal)

    def plain(self, user, password, login=None):
        """Log in by PLAIN; return the answers as they come, and the login."""
        login, answers = login or self.login(), []
        assert login.begin("PLAIN")
        login.step(plain_message(user, password), answers.append)
        self.clock.compute()
        return answers, login


def test_a_login_gives_a_connection_its_principal():
    world = World()
    login = world.login()
    assert (login.principal, login.is_needed) == (ANONYMOUS, True)
    answers = scram_login(login, "alice", "secret")
    assert isinstance(answers[0], Continue)
    assert answers[1][::2] == ("User:alice", 0)
    assert (login.principal, login.is_needed, login.is_expired) == ("User:alice", False, False)
    assert world.counters.accepted == 1
    (event,) = world.clock.events
    assert event[:4] == ("192.0.2.7", "SCRAM-SHA-256", "alice", None)


def test_connections_end_once_the_password_counts_no_more():
    world, ended = World(), []

    def logged_in(name, user, password, mechanism=SCRAM[0]):
        login = login_of(world.logins, on_revoked=lambda: ended.append(name))
        scram_login(login, user, password, mechanism)
        assert login.principal == f"User:{user}"
        return login

    gone, changes = logged_in("gone", "alice", "secret"), logged_in("changes", "alice", "secret")
    changes.changes_users()
    logged_in("bob", "bob", "other")
    logged_in("ended", "alice", "secret").end()
    world.logins.users_changed(["alice", "bob", "eve"])
    assert ended == []
    world.clock.is_ready = False
    world.users.remove("alice")
    world.logins.users_changed(["alice", "bob", "eve"])
    assert ended == []  # it may be that this node does not know her yet
    world.clock.is_ready = True
    world.logins.users_changed(["alice", "bob", "eve"])
    assert ended == ["gone"]
    gone.end()
    world.clock.sleep(CHANGE_GRACE_S)  # for the answer to who has changed the own password
    assert ended == ["gone", "changes"]
    changes.end()
    world.users.add("alice", "secret")
    after = logged_in("after", "alice", "secret")
    after.changes_users()
    world.clock.sleep(CHANGE_S)
    world.users.add("alice", "newer", iterations=8_192)
    world.logins.users_changed(["alice", "bob", "eve"])
    assert ended == ["gone", "changes", "after"]
    after.end()
    assert world.logins._by_password.keys() == {"User:bob"}


def test_who_logs_in_again_with_the_new_password_goes_on():
    world, ended = World(), []
    login = login_of(world.logins, on_revoked=lambda: ended.append(login))
    scram_login(login, "alice", "secret")
    login.changes_users()
    world.users.add("alice", "newer")
    world.logins.users_changed(["alice", "bob", "eve"])
    scram_login(login, "alice", "newer")
    world.clock.sleep(CHANGE_GRACE_S)
    assert ended == []
    assert not login.is_revoked


def test_who_is_in_cannot_log_in_again_and_again():
    """No quota counts logins: one connection would have the node compute all the time (KIP-368)."""
    world = World()
    login = world.login()
    for _ in range(2):
        scram_login(login, "alice", "secret")
        assert login.principal == "User:alice"
        world.clock.sleep(AGAIN_S)
    assert isinstance(scram_login(login, "alice", "secret")[-1], LoggedIn)
    answers, login = world.plain("alice", "secret", login)
    assert (answers, login.is_over) == ([], True)
    world.clock.sleep(60)
    assert answers == [Refused()]


@pytest.mark.parametrize("change", ["removed", "changed"])
@pytest.mark.parametrize("is_held", [False, True])
def test_nobody_is_let_in_by_a_password_that_ends_amid_the_login(is_held, change):
    world = World()
    if is_held:  # the answer to a right password, too
        world.plain("alice", "wrong")
    login, answers = world.login(), []
    login.begin("PLAIN")
    login.step(plain_message("alice", "secret"), answers.append)
    if is_held:
        world.clock.compute()
        assert not answers
    world.users.remove("alice")
    if change == "changed":
        world.users.add("alice", "another")
    world.logins.users_changed(["alice"])
    world.clock.compute()
    for _ in range(2):  # until the answer was due, and until that of a refusal is
        world.clock.sleep(60)
    assert answers == [Refused()]
    assert login.principal == ANONYMOUS


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
def test_who_is_in_by_a_password_that_counts_no_more_is_told_from_others(mechanism):
    world = World()

    def logged_in():
        login = world.login()
        if mechanism == "PLAIN":
            world.plain("alice", "secret", login)
        else:
            scram_login(login, "alice", "secret")
        assert login.principal == "User:alice"
        return login

    before = logged_in()
    world.users.add("bob", "another")
    world.users.add("alice", "secret")  # the same verifier, from a snapshot
    assert not before.is_revoked
    world.users.add("alice", "secret", iterations=8_192)
    after = logged_in()
    assert (before.is_revoked, after.is_revoked) == (True, False)
    scram_login(before, "alice", "secret")
    assert not before.is_revoked
    world.users.remove("alice")
    assert (before.is_revoked, after.is_revoked) == (True, True)
    world.clock.is_ready = False
    assert not before.is_revoked
    assert not world.login(principal="User:carol").is_revoked  # by a certificate


@pytest.mark.parametrize(
    ("origin", "login", "offered"),
    [
        (TLS, "required", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"]),
        (LOOPBACK, "required", SCRAM),
        (REMOTE, "required", []),
        (TLS, "none", []),
        (LOOPBACK, "optional", SCRAM),
    ],
)
def test_a_secret_is_sent_inside_tls_only(origin, login, offered):
    world = World(login=login)
    assert world.login(origin).offered == offered
    for mechanism in ("SCRAM-SHA-256", "PLAIN", "OAUTHBEARER", "SCRAM-SHA-1", ""):
        assert world.login(origin).begin(mechanism) == (mechanism in offered)


@pytest.mark.parametrize(
    ("login", "principal", "is_needed"),
    [
        ("required", ANONYMOUS, True),
        ("required", "User:carol", False),  # by a certificate
        ("optional", ANONYMOUS, False),
        ("none", ANONYMOUS, False),
    ],
)
def test_who_has_to_log_in(login, principal, is_needed):
    assert World(login=login).login(principal=principal).is_needed == is_needed


def test_who_has_a_certificate_and_logs_in_is_who_has_logged_in():
    login = World().login(principal="User:carol")
    scram_login(login, "alice", "secret")
    assert login.principal == "User:alice"


def test_refusals_have_one_text_and_are_answered_later_each_time():
    world = World()
    for number, delay in enumerate([0.5, 1, 2, 4, 8, 8]):
        answers, _ = world.plain("alice", f"wrong {number}")
        world.clock.sleep(delay - 0.01)
        assert answers == []
        world.clock.sleep(0.02)
        assert answers == [Refused("login refused")]
    answers, _ = world.plain("alice", "secret")
    world.clock.sleep(0.01)
    assert answers[0].principal == "User:alice", "nobody is locked out"
    for user in ("carol", "bob"):  # each name by itself
        answers, _ = world.plain(user, "wrong")
        world.clock.sleep(0.51)
        assert answers == [Refused("login refused")]
    reasons = {Reason.PASSWORD: 7, Reason.UNKNOWN_USER: 1}
    assert (world.counters.refused, world.counters.accepted) == (reasons, 1)


def test_after_a_refusal_a_right_password_is_answered_no_sooner_than_a_wrong_one():
    world = World()
    refused = [world.plain("alice", f"wrong {number}")[0] for number in range(3)]  # 2 s
    for origin, user, password in (
        (TLS, "bob", "other"),
        (Origin("192.0.2.8", is_encrypted=True, is_loopback=False), "alice", "secret"),
    ):
        answers, _ = world.plain(user, password, world.login(origin))
        assert answers, "another name, or another address, waits for nothing"
    world.clock.sleep(1)
    answers, login = world.plain("alice", "secret")
    ended, gone = world.plain("alice", "secret")
    gone.end()
    scram = scram_login(world.login(), "alice", "secret")
    world.clock.sleep(0.9)
    assert (answers, login.principal, login.is_needed) == ([], ANONYMOUS, True)
    assert login.is_decided
    assert not login.is_over
    world.clock.sleep(0.2)
    assert answers[0].principal == scram[1].principal == login.principal == "User:alice"
    assert (ended, refused) == ([], [[Refused()]] * 3)
    answers, _ = world.plain("alice", "secret")
    assert answers, "it waits no longer"


def test_a_message_while_an_answer_is_held_back_ends_the_login():
    world = World()
    world.plain("alice", "wrong")
    answers, login = world.plain("alice", "secret")
    login.step(plain_message("alice", "secret"), answers.append)
    world.clock.sleep(8)
    assert answers == [Refused()]
    assert login.principal == ANONYMOUS


def test_the_time_of_a_refusal_does_not_show_how_long_it_took():
    world = World()
    login, answers = world.login(), []
    login.begin("PLAIN")
    login.step(plain_message("alice", "wrong"), answers.append)
    world.clock.sleep(0.3)  # until a thread has computed it
    world.clock.compute()
    world.clock.sleep(0.19)
    assert answers == []
    world.clock.sleep(0.02)
    assert answers == [Refused()]


def test_refusals_are_forgotten_and_their_number_is_bounded():
    delays = FailureDelays()
    assert [delays.failed("a", "n", 0.0) for _ in range(3)] == [0.5, 1.0, 2.0]
    assert delays.failed("b", "n", 0.0) == 0.5
    assert delays.failed("a", "n", FORGOTTEN_S) == 0.5
    assert delays.failed("2001:db8::1", "n", 0.0) == 0.5
    assert delays.failed("2001:db8::2", "n", 0.0) == 1.0, "the same network"
    assert delays.until("2001:db8::3", "n") == 1.0
    for number in range(ENTRIES_MAX):
        delays.failed("a", str(number), FORGOTTEN_S)
    assert len(delays) == ENTRIES_MAX
    assert delays.failed("a", "n", FORGOTTEN_S) == 0.5, "the oldest one was forgotten"
    assert delays.failed("a", str(ENTRIES_MAX - 1), FORGOTTEN_S) == 1.0


def test_passwords_on_threads_are_bounded():
    world = World()
    logins = [world.login() for _ in range(COMPUTED_MAX + 1)]
    answers = []
    for login in logins:
        login.begin("PLAIN")
        login.step(plain_message("alice", "secret"), answers.append)
    assert answers == [Refused(BUSY_TEXT, is_busy=True)]
    assert (world.counters.busy, world.counters.computed) == (1, COMPUTED_MAX)
    logins[0].end()  # its connection has ended
    assert (len(world.clock.work), world.counters.computed) == (COMPUTED_MAX - 1,) * 2
    world.clock.compute()
    assert len(answers) == COMPUTED_MAX
    assert (world.counters.accepted, world.counters.computed) == (COMPUTED_MAX - 1, 0)


def test_a_node_that_does_not_know_its_users_yet_refuses_nobody_for_good():
    world = World()
    world.clock.is_ready = False
    login, answers = world.login(), []
    login.begin("SCRAM-SHA-256")
    login.step(b"n,,n=alice,r=abc", answers.append)
    assert answers == [Refused(BUSY_TEXT, is_busy=True)]
    assert world.users.asked == []


def test_nothing_is_answered_on_a_connection_that_has_ended():
    world = World()
    answers, login = world.plain("alice", "wrong")
    login.end()
    world.clock.sleep(10)
    assert answers == []


@pytest.mark.parametrize(
    "messages",
    [
        [b"n,,n=alice,r=abc", b"c=biws,r=abc,p=AA=="],
        [b"x" * (MESSAGE_BYTES_MAX + 1)],
        [b""],
    ],
)
def test_after_a_refusal_a_connection_takes_no_further_login(messages):
    world = World()
    login, answers = world.login(), []
    login.begin("SCRAM-SHA-256")
    for message in messages:
        login.step(message, answers.append)
    world.clock.sleep(0.3)
    count = len(answers)
    assert not login.begin("SCRAM-SHA-256")
    login.step(b"n,,n=alice,r=abc", answers.append)
    assert len(answers) == count, "no sooner answer for who asks again"
    world.clock.sleep(8)
    assert answers[count:] == [Refused()]
    assert login.is_needed


def test_messages_beside_a_login_are_refused():
    world = World()
    login, answers = world.login(), []
    login.step(b"n,,n=alice,r=abc", answers.append)  # before it has begun
    world.clock.sleep(1)
    assert answers == [Refused()]
    login, answers = world.login(), []
    login.begin("PLAIN")
    for _ in range(2):  # while the first one is computed
        login.step(plain_message("alice", "secret"), answers.append)
    world.clock.compute()
    world.clock.sleep(8)
    assert answers == [Refused()]
    assert login.principal == ANONYMOUS
    assert world.counters.refused == {Reason.MALFORMED: 2}
    assert world.counters.computed == 0


def test_nobody_becomes_a_super_user_by_a_password():
    world = World(super_users=["User:alice"])
    answers, login = world.plain("alice", "secret")
    world.clock.sleep(1)
    assert answers == [Refused()]
    assert login.principal == ANONYMOUS
    assert world.counters.refused == {Reason.SUPER_USER: 1}
    assert login_of(world.logins, TLS, principal="User:alice").is_needed is False


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
@pytest.mark.parametrize("user", ["alice", "root"])  # one has a password, the other is none
def test_the_name_of_a_super_user_is_counted_as_one_whether_it_is_a_user_or_not(user, mechanism):
    world = World(super_users=["User:alice", "User:root"])
    login = world.login()
    if mechanism == "PLAIN":
        world.plain(user, "wrong", login)
    else:
        scram_login(login, user, "wrong")
    assert world.counters.refused == {Reason.SUPER_USER: 1}
    (event,) = world.clock.events
    assert event.text == "a super user comes by a certificate"


def test_no_words_of_the_library_are_in_the_log():
    world = World()
    for user, password in (("alice", "wrong"), ("eve", "wrong")):
        scram_login(world.login(), user, password)
    login = world.login()
    login.begin("SCRAM-SHA-256")
    login.step(b"nonsense", lambda answer: None)
    assert [(event.reason.value, event.text) for event in world.clock.events] == [
        ("password", ""),
        ("unknown_user", ""),
        ("malformed", "a message that is none of SCRAM (RFC 5802)"),
    ]


@pytest.mark.parametrize("name", ["ANONYMOUS", "*", "a" * 129, "a\nb", ""])
def test_names_that_nobody_may_have_are_refused(name):
    world = World(has_tokens=True)
    login, answers = world.login(), []
    login.begin("OAUTHBEARER")
    login.step(bearer_message(world.issuer.token(sub=name)), answers.append)
    world.clock.sleep(1)
    assert answers == [Refused()]


def test_a_token_expires_and_the_user_logs_in_again():
    world = World(has_tokens=True)
    login, answers = world.login(), []

    def log_in(**claims):
        login.begin("OAUTHBEARER")
        login.step(bearer_message(world.issuer.token(**claims)), answers.append)

    log_in()
    assert answers == [LoggedIn("User:alice", b"", 60_000, "OAUTHBEARER")]
    world.clock.sleep(59)
    assert not login.is_expired
    log_in()
    world.clock.sleep(2)
    assert not login.is_expired
    world.clock.sleep(58)
    assert login.is_expired
    log_in()
    assert not login.is_expired
    world.clock.sleep(AGAIN_S)
    log_in(sub="bob")
    world.clock.sleep(1)
    assert answers[-1] == Refused()
    assert world.counters.refused == {Reason.OTHER_USER: 1}
    assert login.principal == "User:alice"


class Native:
    """A client of a node's own port, and what comes of it."""

    origin, principal = TLS, "User:alice"

    def __init__(self):
        self.sent, self.asked, self.reason = [], [], ""

    def opened(self, connection, hello):
        pass

    def frame_received(self, connection, frame):
        self.asked.append(frame)

    def send(self, message, *, correlation_id=0):
        self.sent.append(message)

    def close(self, reason):
        self.reason = reason


def test_no_request_is_served_after_the_password_was_changed(monkeypatch):
    world, native = World(), Native()
    login = world.login()
    scram_login(login, "alice", "secret")
    kafka = ClientLogin(login, lambda principal, mechanism: None)
    monkeypatch.setattr(login_gate, "ConnectionLogin", lambda *args: login)
    gate = LoginGate(world.logins, native)
    gate.opened(native, Hello(cluster="c", node_id="", role="client", group="g"))
    request = Frame(1, MetadataRequest(group="g"), memoryview(b""))
    gate.frame_received(native, request)
    assert (native.asked, native.reason, kafka.why_not(ApiKey.FETCH)) == ([request], "", "")
    world.users.add("alice", "newer", iterations=8_192)
    gate.frame_received(native, request)
    assert native.asked == [request]
    assert native.sent[0].code == ResponseCode.LOGIN_EXPIRED
    assert "password" in native.reason
    assert "password" in kafka.why_not(ApiKey.FETCH)
    assert kafka.why_not(ApiKey.SASL_HANDSHAKE) == ""
