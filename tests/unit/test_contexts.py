"""Contexts: what a file of them may say, which one counts, and what a client is told by one."""

import os
import pickle
import time
import traceback

import jwt
import pytest
from kafka.net.sasl.oauth import SaslMechanismOAuth

from quorumlog.client import Client, Context, Secret, Security, find_context
from quorumlog.client.contexts import (
    Access,
    chosen_access,
    contexts_path,
    read_contexts,
    without_passwords,
)
from quorumlog.client.kafka_security import kafka_python_settings, librdkafka_settings
from quorumlog.model.errors import ConfigError

ID = "AAECAwQFBgcICQoLDA0ODw"
CANARY = "canary-7f3a"


def written(tmp_path, text, rights=0o600):
    path = tmp_path / "contexts.toml"
    path.write_text(text)
    path.chmod(rights)
    return path


@pytest.fixture
def environment(tmp_path):
    return {"QUORUMLOG_CONTEXTS": str(tmp_path / "contexts.toml")}


TWO = """
default = "test"
[contexts.prod]
servers = "h0:7101,h1:7101"
kafka = "h0:9092"
ca = "prod/ca.pem"
user = "alice"
passwordFile = "prod/alice.pw"
[contexts.test]
servers = "127.0.0.1:7101"
"""


# -- the file ---------------------------------------------------------------------------------


def test_paths_are_relative_to_the_file(tmp_path):
    found = read_contexts(written(tmp_path, TWO))
    assert found.default == "test"
    assert found.named("prod") == Context(
        servers="h0:7101,h1:7101",
        kafka="h0:9092",
        ca=f"{tmp_path}/prod/ca.pem",
        user="alice",
        password_file=f"{tmp_path}/prod/alice.pw",
    )
    assert found.named("test") == Context(servers="127.0.0.1:7101")


def test_the_authorities_of_the_machine_are_no_path(tmp_path):
    text = '[contexts.prod]\nca = "system"\ncertificate = "~/a.pem"\nkey = "/k/a.key"'
    found = read_contexts(written(tmp_path, text)).named("prod")
    assert found.ca == "system"
    assert found.certificate.endswith("/a.pem")
    assert "~" not in found.certificate
    assert found.key == "/k/a.key"


def test_a_file_that_is_not_there_has_no_contexts(tmp_path):
    found = read_contexts(tmp_path / "none.toml")
    assert not found.by_name
    with pytest.raises(ConfigError, match=r"none.toml, a file that is not there"):
        found.named("prod")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[contexts.a]\nserver = 'h:1'",
            r"unknown key `server` in \[contexts.a\]; did you mean serv",
        ),
        ("[context.a]", "unknown key `context` in the file's top; did you mean contexts?"),
        ("[contexts.a]\nservers = 1", r"\[contexts.a\]: servers is text in quotes"),
        ("[contexts.a]\nverifyName = 'dns'", "verifyName is one of 'host', 'cluster', not 'dns'"),
        ("contexts = 3", r"contexts are tables, each begun by \[contexts.NAME\]"),
        ("[contexts]\na = 3", r"a is a table, begun by \[contexts.a\]"),
        ("default = 3", "default is text in quotes"),
        ("default = 'b'\n[contexts.a]", "default: there is no context 'b'"),
        ("[contexts.'a b']", "context 'a b' is not usable"),
        ("[contexts.a]\nservers = h:1", "strings need quotes"),
        ("[contexts.a]\npassword = 'canary-7f3a'", "password is in no file of contexts.*Env"),
        ("[contexts.a]\ntoken = 'canary-7f3a'", "token is in no file of contexts.*tokenFile"),
    ],
)
def test_what_a_file_must_not_say_is_refused_in_words(tmp_path, text, said):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=f"{path}: .*{said}") as raised:
        read_contexts(path)
    assert CANARY not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    "line", ["key='a'", "passwordFile='a'", "passwordEnv='A'", "tokenFile='a'"]
)
def test_a_file_that_names_secrets_is_for_its_user_only(tmp_path, line):
    path = written(tmp_path, f"[contexts.a]\n{line}", 0o644)
    with pytest.raises(ConfigError, match=f"chmod 600 {path}"):
        read_contexts(path)
    path.chmod(0o600)
    assert read_contexts(path).by_name
    assert read_contexts(written(tmp_path, "[contexts.a]\nca='system'", 0o644)).by_name


def test_programs_that_run_for_long_are_given_no_passwords(tmp_path):
    path = written(tmp_path, "[contexts.a]\nuser = 'u'\npasswordEnv = 'OUR_PASSWORD'")
    kept = {"QUORUMLOG_CONTEXTS": str(path), "PATH": "/bin"}
    passwords = {"OUR_PASSWORD": CANARY, "QUORUMLOG_NEW_PASSWORD": CANARY}
    assert without_passwords(kept | passwords) == kept
    path.chmod(0o644)
    assert "QUORUMLOG_NEW_PASSWORD" not in without_passwords(kept | passwords)


@pytest.mark.parametrize("rights", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_change_is_refused_even_without_secrets(tmp_path, rights):
    """They could name their own cluster in the place of one whose logs get what is secret."""
    path = written(tmp_path, "[contexts.a]\nservers='h:1'", rights)
    with pytest.raises(ConfigError, match=f"changed by others .*{rights:04o}.*chmod 600 {path}"):
        read_contexts(path)


def test_a_file_of_another_user_is_refused_even_without_secrets(tmp_path, monkeypatch):
    path = written(tmp_path, "[contexts.a]\nservers='h:1'")
    owner = path.stat()
    monkeypatch.setattr(os, "geteuid", lambda: owner.st_uid + 1)
    other = [*owner[:4], owner.st_uid or 7, *owner[5:]]
    monkeypatch.setattr(os, "fstat", lambda _descriptor: os.stat_result(other))
    with pytest.raises(ConfigError, match=f"contexts {path} belongs to the user of number"):
        read_contexts(path)


def test_a_pipe_is_no_file_of_contexts(tmp_path):
    os.mkfifo(tmp_path / "contexts.toml", 0o600)
    with pytest.raises(ConfigError, match=r"contexts.toml is no regular file"):
        read_contexts(tmp_path / "contexts.toml")


def test_where_the_file_is():
    assert str(contexts_path({"HOME": "/h"})) == "/h/.config/quorumlog/contexts.toml"
    at_home = {"HOME": "/h", "XDG_CONFIG_HOME": "relative"}
    assert str(contexts_path(at_home)) == "/h/.config/quorumlog/contexts.toml"
    elsewhere = {"HOME": "/h", "XDG_CONFIG_HOME": "/x"}
    assert str(contexts_path(elsewhere)) == "/x/quorumlog/contexts.toml"
    assert str(contexts_path({"QUORUMLOG_CONTEXTS": "/f.toml", **elsewhere})) == "/f.toml"


# -- which one counts -------------------------------------------------------------------------


def given(**keys):
    return Access(given=Context(**keys))


@pytest.mark.parametrize(
    ("context", "servers", "variables", "expected"),
    [
        ("prod", "", {}, Access(context="prod")),
        ("", "h:1", {}, given(servers="h:1")),
        ("prod", "", {"QUORUMLOG_CONTEXT": "other"}, Access(context="prod")),
        ("", "h:1", {"QUORUMLOG_CONTEXT": "other"}, given(servers="h:1")),
        ("prod", "", {"QUORUMLOG_SERVERS": "h:2"}, Access(context="prod")),
        ("", "", {"QUORUMLOG_CONTEXT": "prod"}, Access(context="prod")),
        ("", "", {"QUORUMLOG_SERVERS": "h:2"}, given(servers="h:2")),
        ("", "", {"QUORUMLOG_BOOTSTRAP_SERVERS": "h:9"}, Access(context="test")),
        ("", "", {}, Access(context="test")),
    ],
)
def test_an_option_counts_before_the_environment_and_that_before_the_default(
    tmp_path, environment, context, servers, variables, expected
):
    written(tmp_path, TWO)
    assert chosen_access(context, servers, environment=environment | variables) == expected


def test_addresses_of_brokers_count_where_brokers_are_wanted(tmp_path, environment):
    written(tmp_path, "")
    brokers = environment | {"QUORUMLOG_BOOTSTRAP_SERVERS": "h:9"}
    assert chosen_access(environment=brokers, wants="kafka") == given(kafka="h:9")
    assert chosen_access(environment=brokers) is None


def test_a_file_that_the_environment_names_has_to_be_there(tmp_path):
    lost = {"QUORUMLOG_CONTEXTS": str(tmp_path / "lost.toml")}
    with pytest.raises(ConfigError, match=f"QUORUMLOG_CONTEXTS names {tmp_path}/lost.toml"):
        chosen_access(environment=lost)
    assert chosen_access(environment=lost | {"QUORUMLOG_SERVERS": "h:1"}) == given(servers="h:1")


def test_two_at_once_are_an_error(environment):
    with pytest.raises(ConfigError, match="give either it or them"):
        chosen_access("prod", "h:1", environment=environment)
    both = {"QUORUMLOG_CONTEXT": "prod", "QUORUMLOG_SERVERS": "h:1"}
    with pytest.raises(ConfigError, match="QUORUMLOG_SERVERS are both set"):
        chosen_access(environment=environment | both)


def test_nothing_may_say_which_cluster(tmp_path, environment):
    written(tmp_path, "")
    assert chosen_access(environment=environment) is None
    with pytest.raises(ConfigError, match="no cluster is named: give a context, set QUORUMLOG_CON"):
        find_context(environment=environment)


def test_a_context_is_found_by_its_name(tmp_path, environment):
    written(tmp_path, TWO)
    assert find_context("prod", environment=environment).user == "alice"
    assert find_context(environment=environment).servers == "127.0.0.1:7101"
    with pytest.raises(ConfigError, match=r"no context 'prd'; did you mean 'prod'\?"):
        find_context("prd", environment=environment)


def test_an_access_can_be_sent_to_another_machine_and_shown(tmp_path, environment):
    written(tmp_path, TWO)
    access = pickle.loads(pickle.dumps(Access(context="prod")))
    assert access.found(environment).kafka == "h0:9092"
    assert str(access) == "context prod"
    assert str(given(servers="h:1,h:2")) == "h:1,h:2"
    assert len({access, Access(context="prod"), given(servers="h:1"), given(servers="h:1")}) == 2


# -- what a client is told --------------------------------------------------------------------


def test_addresses_alone_mean_no_tls():
    assert Context(servers="h:1", kafka="h:2").open().security is None


def test_a_context_with_an_authority_means_tls():
    security = Context(servers="h:1", ca="/ca.pem").open().security
    assert security == Security(ca="/ca.pem")
    by_word = Context(user="alice", password_env="PW").open(environment={"PW": "word"})
    assert by_word.security == Security(
        user="alice", password=Secret("word"), mechanism="SCRAM-SHA-256"
    )


def test_secrets_are_read_from_files(tmp_path):
    for name in ("pw", "token"):
        (tmp_path / name).write_text(f"{name}-{CANARY}\n")
        (tmp_path / name).chmod(0o600)
    by_word = Context(user="alice", password_file=str(tmp_path / "pw")).open().security
    assert by_word.password.reveal() == f"pw-{CANARY}"
    by_token = Context(token_file=str(tmp_path / "token")).open().security
    assert by_token.token.reveal() == f"token-{CANARY}"
    assert by_token.mechanism == "OAUTHBEARER"
    assert CANARY not in repr((by_word, by_token))


def test_a_token_is_the_one_that_the_file_has_when_it_is_needed(tmp_path):
    path = tmp_path / "token"
    path.write_text("one\n")
    path.chmod(0o600)
    security = Context(token_file=str(path)).open().security
    provider = kafka_python_settings(security)["sasl_oauth_token_provider"]
    newest = librdkafka_settings(security)["oauth_cb"]
    path.write_text("two\n")
    assert security.token.reveal() == "two"
    assert SaslMechanismOAuth(sasl_oauth_token_provider=provider).auth_bytes() == (
        b"n,,\x01auth=Bearer two\x01\x01"
    )
    assert newest("")[0] == "two"
    assert security == Context(token_file=str(path)).open().security
    path.unlink()
    with pytest.raises(ConfigError, match=f"token file {path} cannot be read: No such file"):
        newest("")
    with pytest.raises(ConfigError, match=f"token file {path} cannot be read: No such file"):
        Context(token_file=str(path)).open()


@pytest.mark.parametrize("claims", [{"exp": 2_000_000_000}, {"exp": 2_000_000_000.5}])
def test_librdkafka_is_told_how_long_a_token_holds(claims):
    token = Secret(jwt.encode(claims, "k" * 64, "HS256"))
    assert librdkafka_settings(Security(token=token))["oauth_cb"]("")[1] == claims["exp"]


@pytest.mark.parametrize("token", ["opaque", "a.b.c", "a.!.c", jwt.encode({}, "k" * 64, "HS256")])
def test_a_token_that_does_not_say_how_long_it_holds_is_asked_for_again(token):
    settings = librdkafka_settings(Security(token=Secret(token)))
    assert time.time() < settings["oauth_cb"]("")[1] < time.time() + 4_000


def test_a_password_that_is_in_no_file_is_asked_for():
    asked = []

    def ask(question):
        asked.append(question)
        return "word"

    security = Context(user="alice").open(ask=ask).security
    assert security.password.reveal() == "word"
    assert asked == ["Password of alice: "]
    with pytest.raises(ConfigError, match="the password of alice is in no file: give passwordFile"):
        Context(user="alice").open()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"ca": b"x"}, "ca is a str"),
        ({"ca": ""}, "ca is the file of a certificate authority, or"),
        ({"certificate": "a"}, "certificate is given without key"),
        ({"key": "a"}, "key is given without certificate"),
        ({"verify_name": "dns"}, "verify_name is host or cluster, not 'dns'"),
        ({"verify_name": "cluster"}, "cluster_id must say which"),
        ({"cluster_id": "prod"}, "cluster_id is a cluster's id of 22 characters"),
        ({"cluster_id": ID[:-1] + "!"}, "cluster_id is a cluster's id of 22 characters"),
        ({"mechanism": "GSSAPI"}, "mechanism is one of SCRAM-SHA-256, .*, not 'GSSAPI'"),
        (
            {"mechanism": "PLAIN", "user": "a"},
            "PLAIN needs a user and a password: the password is missing",
        ),
        ({"password": Secret("x")}, "needs a user and a password: the user is missing"),
        ({"password": CANARY, "user": "a"}, "password is a Secret"),
        ({"token": CANARY}, "token is a Secret"),
        ({"user": "a"}, "user a has no password and no token"),
        ({"mechanism": "OAUTHBEARER"}, "OAUTHBEARER needs a token"),
        ({"mechanism": "PLAIN", "token": Secret("x")}, "a token is for mechanism OAUTHBEARER"),
        ({"user": "a", "token": Secret("x"), "password": Secret("y")}, "a login takes one of them"),
    ],
)
def test_what_makes_no_security_is_refused_in_words(keys, said):
    with pytest.raises(ConfigError, match=said) as raised:
        Security(**keys)
    assert CANARY not in "".join(traceback.format_exception(raised.value))


def test_a_client_checks_files_before_it_asks_anybody(tmp_path):
    with pytest.raises(ConfigError, match=r"none.pem cannot be read: No such file"):
        Client("h:1", "g", security=Security(ca=str(tmp_path / "none.pem")))
    for name in ("a.pem", "a.key"):
        (tmp_path / name).write_text("-----BEGIN -----")
        (tmp_path / name).chmod(0o644)
    own = Security(certificate=str(tmp_path / "a.pem"), key=str(tmp_path / "a.key"))
    with pytest.raises(ConfigError, match=r"key .*a.key.* can be used by others .*chmod 600"):
        Client("h:1", "g", security=own)


def test_a_client_is_made_of_a_context():
    assert Client(Context(servers="h:1,h:2"), "g").servers() == ["h:1", "h:2"]
    assert Client(Context(servers="h:1", ca="system"), "g")
    with pytest.raises(ConfigError, match="the context names no nodes"):
        Client(Context(kafka="h:9092"), "g")
    with pytest.raises(ConfigError, match="a context has its own security"):
        Client(Context(servers="h:1"), "g", security=Security())
    with pytest.raises(ConfigError, match="security is a Security or None"):
        Client("h:1", "g", security="prod")
