"""`members remove`: which member is not removed from the group of the brokers."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from quorumlog.cli.main import main
from quorumlog.cli.target import Target
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import NetworkError


@pytest.fixture
def remove(monkeypatch):
    """Remove n0 from a group, while n1 answers; return the exit status and the client's admin.

    `groups`: what the client says when it is asked for all groups.
    """

    def removed(group, code_of_n0, groups=([],)):
        client = MagicMock()
        client.__enter__.return_value = client
        client.admin.groups.list.side_effect = groups
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


def test_partition_groups_that_a_removed_broker_is_still_a_member_of_are_named(remove, capsys):
    both, other = {"n0": "127.0.0.1:1", "n1": "127.0.0.1:2"}, {"n1": "127.0.0.1:2"}
    found = [("pg-10", both), ("pg-2", both), ("pg-3", other), ("orders", both)]
    groups = [SimpleNamespace(group=name, members=members) for name, members in found]
    assert remove("__cluster", ResponseCode.NETWORK_ERROR, [groups])[0] == 0
    out, error = capsys.readouterr()
    assert out == "n0 is no member of __cluster any more\n"
    assert "n0 is still a member of pg-2, pg-10: partition groups keep their members" in error


def test_a_removal_does_not_fail_if_nobody_says_which_groups_there_are(remove, capsys):
    assert remove("__cluster", ResponseCode.NETWORK_ERROR, NetworkError("no answer"))[0] == 0
    assert capsys.readouterr().err == ""
