"""`members remove`: which member is not removed from the group of the brokers."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from quorumlog.cli.main import main
from quorumlog.cli.target import Target
from quorumlog.model.codes import ResponseCode


@pytest.fixture
def remove(monkeypatch):
    """Remove n0 from a group, while n1 answers; return the exit status and the client's admin."""

    def removed(group, code_of_n0):
        client = MagicMock()
        client.__enter__.return_value = client
        client.status.return_value = [
            SimpleNamespace(node_id="n0", code=code_of_n0),
            SimpleNamespace(node_id="n1", code=ResponseCode.SUCCESS),
        ]
        monkeypatch.setattr(Target, "client", lambda _: client)
        where = ("--servers", "127.0.0.1:1", "--group", group)
        return main(["members", "remove", "n0", *where]), client.admin

    return removed


def test_a_broker_that_runs_is_not_removed_from_the_group_of_brokers(remove, capsys):
    status, admin = remove("__cluster", ResponseCode.SUCCESS)
    assert status == 1
    assert "n0 runs" in (error := capsys.readouterr().err)
    assert "stop its process first" in error
    admin.remove_member.assert_not_called()


@pytest.mark.parametrize(
    ("group", "code_of_n0"),
    [("__cluster", ResponseCode.NETWORK_ERROR), ("orders", ResponseCode.SUCCESS)],
)
def test_any_other_member_is(remove, group, code_of_n0):
    status, admin = remove(group, code_of_n0)
    assert status == 0
    admin.remove_member.assert_called_once_with("n0")
