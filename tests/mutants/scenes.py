"""Scenes in which bugs show that chance meets too rarely, played with the bug and without it.

A scene raises `Finding` if an invariant does not hold, and `SceneError` if it did not come about,
which says nothing about the product.
"""

from random import Random

from quorumlog.model.block import encode_block, parse_block
from quorumlog.model.membership import Member
from quorumlog.raft.events import (
    AddMember,
    ChangeRequested,
    PromoteMember,
    RemoveMember,
    TransferRequested,
)
from quorumlog.sim.broker_run import COMMITS, TRANSACTIONS, BrokerRun
from quorumlog.sim.cluster import SimulatedCluster
from quorumlog.sim.impostors import Impostors
from quorumlog.sim.invariants.no_retraction import NoRetraction
from quorumlog.sim.machines import KEY_VALUES
from quorumlog.sim.transactional_clients import Habits, TransactionalProducer
from quorumlog.storage.log.hard_state import FILE_NAME as STATE_NAME
from quorumlog.storage.metadata.dual_slot_file import COPY
from quorumlog.topics.retention import RetentionRule

SCENE_MS = 20_000
STEP_MS = 10
ALWAYS_COMMITS = Habits(commits=1, abandons=0, dies=0, dawdles=0)


class SceneError(Exception):
    """A scene did not come about."""


class Always(Random):
    """Has whatever is done one time in many be done each time."""

    def randrange(self, *_):
        return 0


def until(cluster, condition, what):
    end_ms = cluster.clock.now_ms + SCENE_MS
    while not condition():
        if cluster.clock.now_ms >= end_ms:
            raise SceneError(f"{what}: {cluster.describe()}")
        cluster.run_until(cluster.clock.now_ms + STEP_MS)


def wait(cluster, duration_ms):
    cluster.run_until(cluster.clock.now_ms + duration_ms)


def founded(**settings):
    """A group of three that has served an append, whoever leads it, and the others."""
    cluster = SimulatedCluster(1, 3, max_push_time_out_ms=500, **settings)
    for node_id in cluster.founders:
        cluster.nodes[node_id].start()
    cluster.run_until_equal(SCENE_MS)
    leader = cluster.leader()
    return cluster, leader, [node for node in cluster.members() if node is not leader]


def cut(cluster, some, others):
    for one in some:
        for other in others:
            cluster.network.cut |= {(one.node_id, other.node_id), (other.node_id, one.node_id)}


def propose(cluster, node, bodies):
    """Have a node append, whether it leads alone or not; nobody waits for the answer."""
    cluster.clients.asked.update(bodies)
    data = memoryview(bytearray(encode_block(bodies)))
    block = parse_block(data, count=len(bodies), entry_bytes_max=4_096)
    node.enter(lambda: node.propose(block, lambda response, results: None, None))


def recovered(cluster, rests_ms=0):
    """Everybody is reached, runs, and becomes equal; then nothing is asked of them for a while."""
    cluster.network.cut.clear()
    for node in cluster.nodes.values():
        node.files.forgive()
        if node.life:
            node.start()
    cluster.run_until_equal(SCENE_MS)
    wait(cluster, rests_ms)
    cluster.check_end()


def r02_no_disk_takes_a_vote():
    cluster, leader, followers = founded()
    for node in followers:
        node.files.fail_next(STATE_NAME + COPY, "EIO")  # it is written first
    leader.stop(power=False)
    wait(cluster, 5_000)
    recovered(cluster)


def r06_a_leader_that_was_cut_off_starts_again():
    cluster, leader, followers = founded()
    cut(cluster, [leader], followers)
    propose(cluster, leader, [b"never committed"])
    wait(cluster, 100)
    leader.stop(power=False)
    leader.start()
    cluster.run_until_served(SCENE_MS)
    recovered(cluster)


def r07_pushes_arrive_twice_and_late():
    cluster, _, _ = founded()
    cluster.network.repeat, cluster.network.delay_us = 1.0, (100, 100_000)
    for _ in range(50):
        cluster.clients.append(1, 20)
        wait(cluster, STEP_MS)
    cluster.network.calm()
    recovered(cluster)


def r10_leadership_is_transferred_to_a_node_that_is_cut_off():
    cluster, leader, followers = founded()
    target = followers[0].node_id
    cut(cluster, [leader], followers[:1])
    leader.ask(lambda number: TransferRequested(number, target))
    wait(cluster, 5_000)
    recovered(cluster)


def r13_an_idle_groups_follower_loses_its_disk():
    cluster, _, [follower, _] = founded()
    cluster.run_until_idle(SCENE_MS)
    follower.stop(power=False)
    follower.wipe()
    follower.start()
    recovered(cluster)


def r14_who_acknowledged_an_entry_loses_its_disk():
    cluster, leader, [holder, lagging] = founded()
    cut(cluster, [lagging], [leader, holder])
    cluster.run_until_served(SCENE_MS)
    leader.stop(power=False)
    holder.stop(power=False)
    holder.wipe()
    cluster.network.cut.clear()
    holder.start()
    wait(cluster, 5_000)
    recovered(cluster)


def r15_a_leader_that_is_cut_off_takes_new_voters():
    cluster, leader, followers = founded(spares=2)
    spares = [cluster.nodes[node_id] for node_id in cluster.spares]
    for spare in spares:
        spare.start()
    cut(cluster, [leader, *spares], followers)
    for spare in spares:
        member = Member(spare.node_id, spare.address)
        leader.ask(lambda number, member=member: ChangeRequested(number, AddMember(member)))
    wait(cluster, 150)
    for name in cluster.spares:
        leader.ask(lambda number, name=name: ChangeRequested(number, PromoteMember(name)))
        wait(cluster, 50)
    cluster.run_until_served(SCENE_MS)
    wait(cluster, 5_000)
    recovered(cluster)


def r17_a_leader_is_removed():
    cluster, leader, _ = founded()
    name = leader.node_id
    leader.ask(lambda number: ChangeRequested(number, RemoveMember(name)))
    wait(cluster, 3_000)
    recovered(cluster)


def r20_a_slow_disk_has_several_writes_to_do():
    cluster, leader, _ = founded()
    for number, invariant in enumerate(cluster.invariants):
        if isinstance(invariant, NoRetraction):
            cluster.invariants[number] = NoRetraction(Always())
    leader.slow = 20
    for _ in range(20):
        cluster.clients.append(1, 20)
        wait(cluster, 2)
    leader.slow = 1
    recovered(cluster)


def r33_others_stand_still_while_a_replica_counts():
    """The hour for which entries are kept lasts four seconds."""
    hours = ";".join(map(str, range(24)))
    cluster, leader, [ahead, other] = founded(
        file_reserved_hours=1, hour_ms=4_000, delete_when=hours, clean_interval=100
    )
    append_much(cluster)
    cut(cluster, [ahead], [leader, other])
    leader.stop(power=False)
    other.stop(power=False)
    wait(cluster, 3_000)
    leader.start()
    other.start()
    cluster.run_until_served(SCENE_MS)
    cluster.network.cut.clear()
    append_much(cluster)
    recovered(cluster)


def append_much(cluster):
    for _ in range(60):
        cluster.clients.append(8, 400)
        wait(cluster, 50)


def r34_records_of_keys_and_values_are_damaged():
    cluster, leader, _ = founded(state_machine=KEY_VALUES, snapshot_threshold=60)
    cluster.damaged_machines.add(leader.node_id)
    random = Random(1)
    cluster.clients.start(3)
    for _ in range(40):
        wait(cluster, 100)
        leader.machines.flip_bit_in_memory(random)
    cluster.clients.is_running = False
    wait(cluster, 1_000)
    recovered(cluster)


def r36_a_leader_that_was_cut_off_is_asked_to_stop():
    cluster, leader, followers = founded()
    cut(cluster, [leader], followers)
    cluster.clients.append(1, 20)
    wait(cluster, 50)
    leader.enter(leader.running.prepare_stop)
    wait(cluster, 50)
    leader.stop(power=False)
    cluster.run_until_served(SCENE_MS)
    recovered(cluster)


def r37_somebody_speaks_in_members_names():
    cluster, _, _ = founded()
    impostors = Impostors(cluster, Random(1))
    impostors.start()
    wait(cluster, 30_000)
    impostors.end()
    recovered(cluster)


def j02_what_was_removed_is_in_the_journal():
    cluster, leader, followers = founded()
    for _ in range(50):
        cluster.clients.append(1, 40)
        wait(cluster, STEP_MS)
    cut(cluster, [leader], followers)
    for number in range(10):
        propose(cluster, leader, [b"never committed %d" % number])
        wait(cluster, STEP_MS)
    until(cluster, lambda: cluster.leader() in followers, "another leader")
    cluster.network.cut.clear()
    until(cluster, lambda: leader.log.end_chain_crc == cluster.leader().log.end_chain_crc, "equal")
    for number in range(3):
        large = [b"large %d of %d".ljust(400) % (part, number) for part in range(6)]
        propose(cluster, cluster.leader(), large)
        wait(cluster, 50)
    leader.stop(power=True)
    recovered(cluster)


def written_and_given_up(rule, *, restarts=False):
    """Clients write to partitions that all have a rule, for some seconds; all ends well."""
    cluster = founded_with_rules(dict.fromkeys(range(1, 40), rule))
    for _ in range(3):
        wait(cluster, 2_000)
        if restarts:
            for node in cluster.nodes.values():
                node.stop(power=False)
                node.start()
    end_well(cluster)


def end_well(cluster):
    cluster.clients.is_running = False
    wait(cluster, 2_000)  # clients wait no longer for what was lost
    recovered(cluster, rests_ms=500)


def founded_with_rules(rules):
    settings = {"kind": "partitions", "clean_interval": 100, "max_push_time_out_ms": 500}
    cluster = SimulatedCluster(1, 3, **settings)
    cluster.rules = rules
    for node in cluster.nodes.values():
        node.start()
    cluster.clients.start(1)
    return cluster


def p09_partitions_give_up_bytes_and_all_nodes_start_again():
    written_and_given_up(RetentionRule(None, 3_000), restarts=True)


def p10_partitions_give_up_bytes():
    written_and_given_up(RetentionRule(None, 3_000))


def p11_some_partitions_give_up_everything_and_others_nothing():
    cluster = founded_with_rules({channel: RetentionRule(None, 1) for channel in range(2, 40)})
    wait(cluster, 5_000)
    end_well(cluster)


def p12_partitions_give_up_what_is_old():
    written_and_given_up(RetentionRule(4_000, None))


def p13_partitions_give_up_what_is_old_or_too_much():
    written_and_given_up(RetentionRule(4_000, 3_000))


def with_clients(groups=(), producers=0):
    """Brokers, and clients that work: members of some groups, and some producers beside them."""
    run = BrokerRun(1)
    run.requests.lost = 0
    run.groups = [one for one in run.groups if one.name in groups]
    run.members = [one for one in run.members if one.history in run.groups]
    run.producers = [
        TransactionalProducer(run.requests, f"producer {at}", f"id {at}", run.sent)
        for at in range(producers)
    ]
    run.begin()
    return run


def coordinator_of(run):
    found = run.cluster.coordinator()
    if found is None:
        raise SceneError("nobody coordinates")
    return found


def coordinator_loses_its_peers(run):
    """It goes on to be reached by its clients until another one is there.

    For some time before, while it is the coordinator for sure, its appends reach nobody.
    """
    coordinator = coordinator_of(run)
    appends_stand_still(run, coordinator)
    run.wait_ms(400)
    run.cluster.parted.add(coordinator.node_id)
    run.wait_ms(1_500)
    run.cluster.parted.clear()
    run.cluster.paces.clear()


def appends_stand_still(run, node):
    """What a node appends reaches no other one from now on; its heartbeats do."""
    peers = [peer for peer in run.cluster.ids if peer != node.node_id]
    run.cluster.paces.update({(node.node_id, peer, True): 0 for peer in peers})


def c03_coordinators_lose_their_peers_while_members_commit():
    run = with_clients(groups=[COMMITS])
    for _ in range(2):
        run.wait_ms(500)
        coordinator_loses_its_peers(run)
    run.end()


def c10_coordinators_lose_their_peers_while_members_join():
    run = with_clients(groups=[COMMITS])
    for member in run.members:
        run.wait_ms(300)
        until(run.cluster, lambda member=member: member.owned, "it has partitions")
        member.leaves = 1
        until(run.cluster, lambda member=member: not member.owned, "it has left")
        member.leaves = 0
        coordinator_loses_its_peers(run)
    run.end()


def c12_commands_take_longer_than_anybody_waits():
    run = with_clients(producers=5)
    run.wait_ms(300)
    appends_stand_still(run, coordinator_of(run))
    run.wait_ms(7_000)
    run.cluster.paces.clear()
    run.end()


def c13_a_member_ends_transactions_when_others_have_its_partitions():
    run = with_clients(groups=[TRANSACTIONS])
    run.members = run.members[:2]
    for member in run.members:
        member.producer.habits = ALWAYS_COMMITS
    run.members[0].producer.habits = ALWAYS_COMMITS._replace(lingers_ms=(2_500, 4_000))
    run.wait_ms(5_000)
    run.end()


def c14_coordinators_lose_their_peers_as_transactions_end():
    run = with_clients(producers=4)
    for producer in run.producers:
        producer.habits = ALWAYS_COMMITS._replace(lingers_ms=(100, 500))
    run.wait_ms(500)
    coordinator_loses_its_peers(run)
    run.end()


SCENES = {name[:3]: scene for name, scene in list(globals().items()) if name[1:3].isdigit()}
"""By the mutant that each finds."""
SCENES["c04"] = SCENES["c03"]
