"""What `quorumlog cluster up` says of nodes that do not get ready."""

from quorumlog.local.cluster import _complaints
from quorumlog.local.health import GroupHealth, NodeHealth
from quorumlog.model.codes import FAILED


def test_what_ails_several_nodes_is_said_once():
    failed = GroupHealth(healthy=False, role=FAILED, text="no module 'tally'\nTraceback")
    health = {
        name: NodeHealth(name, healthy=False, groups={"g": failed}) for name in ("n0", "n2", "n3")
    } | {"n1": None}
    assert _complaints(sorted(health), health) == (
        "n0, n2, n3 (g: no module 'tally'); n1 (no answer)"
    )
