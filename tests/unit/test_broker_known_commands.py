"""Commands that a member of `__cluster` does not know are not given yet."""

import pytest

from quorumlog.broker.known_commands import refusal_of
from quorumlog.machine.cluster.commands import (
    AllocateProducerIds,
    AlterAcls,
    AlterQuotas,
    AlterUsers,
)
from quorumlog.model.features import OWN_FEATURES, SECURITY

ROOT = "User:root", "192.0.2.1:5000"
CHANGES = [AlterUsers(*ROOT, []), AlterAcls(*ROOT, [], []), AlterQuotas(*ROOT, [])]


def refused(command, **features):
    return refusal_of(command, features, features.get)


@pytest.mark.parametrize("command", CHANGES)
def test_security_waits_for_members_of_earlier_releases(command):
    assert refused(command, n1=OWN_FEATURES, n2=SECURITY) == ""
    assert refused(command, n1=OWN_FEATURES, n2=0, n3=0).endswith("upgrade n2, n3 first")
    assert "upgrade n2 first" in refused(command, n1=None, n2=OWN_FEATURES & ~SECURITY)


@pytest.mark.parametrize("command", CHANGES)
def test_a_member_that_was_never_reached_does_not_keep_rights_from_being_taken_away(command):
    assert refused(command, n1=OWN_FEATURES, n2=None) == ""


def test_other_commands_are_given_in_mixed_clusters():
    assert refused(AllocateProducerIds(1), n1=0) == ""
