"""Many groups on three real nodes: they rest, survive the death of a node, and rest again."""

from quorumlog.model.codes import Role

GROUPS = [f"g{number}" for number in range(50)]
OPTIONS = {"groups": GROUPS, "store_type": "MEMORY"}


def replicas(cluster):
    return [replica for node in cluster.nodes.values() for replica in node.replicas.values()]


def all_rest(cluster):
    return all(replica.core.rests for replica in replicas(cluster))


def all_led(cluster):
    return all(cluster.leader_id(group) is not None for group in GROUPS)


async def test_idle_groups_rest_and_an_append_wakes_its_group_only(make_cluster, until):
    async with make_cluster(**OPTIONS) as cluster:
        await cluster.start()
        await until(lambda: all_rest(cluster), what="rest")
        terms = {group: cluster.replica("n0", group).core.term for group in GROUPS}
        async with cluster.client("g7") as client:
            await client.append(b"entry")
            resting = sum(replica.core.rests for replica in replicas(cluster))
            assert resting >= 3 * (len(GROUPS) - 1)
            assert (await client.get(1)).body == b"entry"
        await until(lambda: all_rest(cluster), what="rest")
        assert {group: cluster.replica("n0", group).core.term for group in GROUPS} == terms


async def test_all_groups_of_a_node_that_dies_get_new_leaders_and_rest_again(make_cluster, until):
    async with make_cluster(**OPTIONS) as cluster:
        await cluster.start()
        await until(lambda: all_rest(cluster), what="rest")
        dead = cluster.leader_id(GROUPS[0])
        await cluster.stop(dead, clean=False)
        await until(lambda: all_led(cluster), what="a leader of every group")
        await until(lambda: all_rest(cluster), what="rest without the dead node")
        for group in GROUPS[::10]:
            async with cluster.client(group) as client:
                assert (await client.append(b"after")).index > 0


async def test_a_node_that_comes_back_takes_part_again(make_cluster, until):
    async with make_cluster(groups=GROUPS[:10]) as cluster:
        await cluster.start()
        await until(lambda: all_rest(cluster), what="rest")
        await cluster.stop("n2")
        await until(lambda: all(cluster.leader_id(group) for group in GROUPS[:10]))
        await cluster.start("n2")
        await until(lambda: all_rest(cluster), what="rest")
        for group in GROUPS[:10]:
            assert len(set(cluster.logs(group).values())) == 1
            assert cluster.replica("n2", group).core.role in (Role.FOLLOWER, Role.LEADER)
