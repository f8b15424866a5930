"""Three nodes inside the program of a test, with what the program has for their group."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

from quorumlog import GroupConfig, Node, NodeConfig, Role
from quorumlog.local.ports import free_ports
from small_files import SMALL_FILES


def configs(directory, count=3, group="g", **options):
    """Return the configuration of each node of a cluster."""
    ids = [f"n{number}" for number in range(count)]
    peers = ";".join(
        f"{node_id}-127.0.0.1:{port}" for node_id, port in zip(ids, free_ports(count), strict=True)
    )
    hosted = GroupConfig(group=group, peers=peers, **{**SMALL_FILES, **options})
    return {
        node_id: NodeConfig(
            self_id=node_id, store_base_dir=str(directory / node_id), groups=[hosted]
        )
        for node_id in ids
    }


class Program:
    """The nodes, by their ids, and the group as each of them sees it."""

    def __init__(self, nodes, group):
        self.nodes = nodes
        self.groups = {node_id: node.group(group) for node_id, node in nodes.items()}

    async def leader(self):
        """Return the group where it is led, once it knows what is committed."""
        while True:
            for group in self.groups.values():
                if group.role is Role.LEADER:
                    await group.bounds(linearizable=True)
                    return group
            await asyncio.sleep(0.01)

    async def follower(self):
        await self.leader()
        return next(group for group in self.groups.values() if group.leader_id != leader_id(group))

    @property
    def servers(self):
        return ",".join(node.config.listen_address for node in self.nodes.values())


def leader_id(group):
    return group.status().node_id


@asynccontextmanager
async def program(directory, made=None, group="g", **attached):
    """Run three nodes; each value of `attached` is made by a function of the node's id."""
    nodes = {}
    async with AsyncExitStack() as stack:
        for node_id, config in (made or configs(directory, group=group)).items():
            nodes[node_id] = node = Node(config)
            node.add_group(group, **{name: make(node_id) for name, make in attached.items()})
            await stack.enter_async_context(node)
        yield Program(nodes, group)
