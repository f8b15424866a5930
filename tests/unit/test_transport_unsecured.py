"""Who has come plain or anonymous is remembered, within bounds."""

from types import SimpleNamespace

from quorumlog.transport.unsecured import CLIENTS_MAX, UnsecuredClient, UnsecuredClients


def connection(principal="User:ANONYMOUS", host="192.0.2.1", **more):
    given = {"called": "app", "is_encrypted": False, "is_served": True, **more}
    return SimpleNamespace(principal=principal, remote_address=f"{host}:4711", **given)


def test_plain_and_anonymous_clients_are_remembered_and_no_others():
    clients = UnsecuredClients()
    clients.note_end(connection(), 1.0)
    clients.note_end(connection("User:alice", called="etl"), 2.0)
    clients.note_end(connection(is_encrypted=True, host="[2001:db8::1]"), 3.0)
    clients.note_end(connection("User:bob", is_encrypted=True), 4.0)
    clients.note_end(connection(called="stranger", is_served=False), 4.0)
    assert clients.seen([], 5.0) == [
        (UnsecuredClient("User:ANONYMOUS", "2001:db8::1", "app", False), 2.0),
        (UnsecuredClient("User:alice", "192.0.2.1", "etl", True), 3.0),
        (UnsecuredClient("User:ANONYMOUS", "192.0.2.1", "app", True), 4.0),
    ]


def test_those_that_are_there_were_seen_just_now():
    clients = UnsecuredClients()
    clients.note_end(connection(), 1.0)
    there = [connection(), connection(), connection("User:alice")]
    assert [(one.principal, ago) for one, ago in clients.seen(there, 9.0)] == [
        ("User:ANONYMOUS", 0.0),
        ("User:alice", 0.0),
    ]
    assert clients.seen([], 9.0)[0][1] == 8.0  # the others have not ended yet


def test_the_one_that_was_seen_the_longest_ago_is_forgotten():
    clients = UnsecuredClients()
    for number in range(CLIENTS_MAX):
        clients.note_end(connection(called=str(number)), float(number))
    clients.note_end(connection(called="0"), float(CLIENTS_MAX))
    clients.note_end(connection(called="one more"), float(CLIENTS_MAX))
    names = {one.name for one, _ in clients.seen([], float(CLIENTS_MAX))}
    assert len(names) == CLIENTS_MAX
    assert {"0", "one more"} <= names
    assert "1" not in names


def test_what_a_client_calls_itself_is_printable_and_short():
    clients = UnsecuredClients()
    clients.note_end(connection(called="a\n\x1b[2J" + "x" * 10_000), 0.0)
    ((client, _),) = clients.seen([], 0.0)
    assert client.name.isprintable()
    assert len(client.name) <= 64
