"""DeleteAcls while a cluster has many ACLs: others have their turns on the loop meanwhile."""

import asyncio
import threading
from types import SimpleNamespace

from quorumlog.auth.acls import Acl, Operation, PatternType, Permission, ResourceType
from quorumlog.kafka.handlers.security import handle_delete_acls
from quorumlog.machine.cluster.security import Security

FILTER = {
    "resource_type_filter": ResourceType.TOPIC,
    "resource_name_filter": None,
    "pattern_type_filter": PatternType.ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": Operation.ANY,
    "permission_type": Permission.ANY,
}


def acl(name):
    return Acl(
        ResourceType.TOPIC,
        name,
        PatternType.LITERAL,
        "User:alice",
        "*",
        Operation.READ,
        Permission.ALLOW,
    )


class Context:
    """A request of a client that may alter the cluster, and the node that it comes to."""

    principal, address = "User:root", "192.0.2.1:5000"

    def __init__(self, names):
        self._state = Security()
        for name in names:
            self._state._add_acl(acl(name))
        self.rights = SimpleNamespace(refused=lambda right: None)
        self.broker = self
        self.searched_by = set()

    async def barrier(self, timeout_ms):
        return True

    @property
    def security(self):
        view = self._state.view()

        def acls_of(asked):
            self.searched_by.add(threading.get_ident())
            return view.acls_of(asked)

        return SimpleNamespace(acls_of=acls_of)

    @property
    def left(self):
        return sorted(one.name for acls in self._state.acls.values() for one in acls)

    async def execute(self, command, timeout_ms):
        return self._state.alter_acls(command)

    async def in_turns(self, elements):
        for one in elements:
            yield one

    async def on_thread(self, work):
        return await asyncio.to_thread(work)

    def note_error(self, error, text):
        raise AssertionError(text)


async def test_acls_are_searched_for_each_filter_on_a_thread():
    context = Context(["a", "b", "c"])
    filters = [
        SimpleNamespace(**FILTER | {"resource_name_filter": name}) for name in ("a", "c", "d")
    ]
    told = await handle_delete_acls(context, SimpleNamespace(filters=filters))
    found = [
        [one["resource_name"] for one in result["matching_acls"]]
        for result in told["filter_results"]
    ]
    assert found == [["a"], ["c"], []]
    assert context.left == ["b"]
    assert context.searched_by
    assert threading.get_ident() not in context.searched_by, "the event loop searched"
