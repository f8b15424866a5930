"""How fast a peer that lags far is sent entries from disk (spec 30 section 7; spec 90 102, 103)."""

import pytest

from quorumlog.model.codes import PushType, ResponseCode
from quorumlog.model.messages.peer import VoteRequest
from quorumlog.raft import events as ev
from quorumlog.raft.rate_limiter import RateLimiter
from raft_cluster import ENTRY_BYTES, Cluster
from raft_messages import Contents, log_of

APPEND = PushType.APPEND


class ColdCluster(Cluster):
    """What is pushed comes from disk, unless it is `warm`."""

    warm = False

    def step(self, replica, event, entries=()):
        if isinstance(event, ev.EntriesRead):
            cold = (event.peer_id, event.request_id, event.last_index, event.size_bytes)
            event = ev.EntriesRead(*cold, from_memory=self.warm)
        return super().step(replica, event, entries)


def test_103_the_quota_is_used_up_for_this_second_only():
    quota = RateLimiter(lambda: 1_000)
    quota.sample(999, 5_000)
    assert not quota.is_used_up(5_000)
    quota.sample(2, 5_300)

    assert quota.is_used_up(5_300)
    assert quota.is_used_up(5_999)
    assert quota.left_ms(5_300) == 700
    assert not quota.is_used_up(6_000)
    assert quota.left_ms(6_000) == 1_000


def test_103_seconds_without_traffic_save_nothing_up():
    quota = RateLimiter(lambda: 1_000)
    quota.sample(600, 1_000)
    quota.sample(1_000, 9_500)

    assert quota.is_used_up(9_500)


def lagging(entries, per_second, *, warm=False):
    """n2, empty, joins n0, who leads with so many entries; sent per second of the clock."""
    logs = {"n0": log_of((1, entries)), "n1": log_of((1, entries)), "n2": Contents()}
    cluster = ColdCluster(
        3, logs=logs, push_quota_bytes=per_second * ENTRY_BYTES, push_bytes_max=ENTRY_BYTES
    )
    cluster.warm = warm
    cluster.delay_ms = cluster.sync_ms = (1, 1)
    cluster.drop = lambda message: isinstance(message, VoteRequest) and message.local_id != "n0"
    cluster.start("n0", "n1")
    cluster.elect()
    cluster.sent.clear()
    cluster.now = -(-cluster.now // 1_000) * 1_000
    cluster.start("n2")
    return cluster


def sent_in_a_second(cluster):
    before = sum(m.last_index - m.first_index + 1 for m in cluster.pushes(APPEND, "n2"))
    cluster.run_for(1_000)
    after = sum(m.last_index - m.first_index + 1 for m in cluster.pushes(APPEND, "n2"))
    return after - before


@pytest.mark.parametrize("per_second", [10, 97])
def test_102_a_peer_far_behind_is_sent_its_quota_each_second(per_second):
    cluster = lagging(3_000, per_second)
    cluster.run_for(999)
    for _ in range(5):
        assert abs(sent_in_a_second(cluster) - per_second) <= 1


def test_102_within_a_thousand_entries_nothing_is_held_back():
    cluster = lagging(1_200, 50)
    cluster.run_until(lambda: cluster.core("n2").end_index >= 1_200, 10_000)
    pushes = cluster.pushes(APPEND, "n2")
    assert len(pushes) >= 1_201
    cluster.converge()

    assert cluster.core("n2").committed_index == 1_200


def test_102_entries_still_in_memory_are_not_held_back():
    cluster = lagging(3_000, 10, warm=True)
    started = cluster.now
    cluster.run_until(lambda: cluster.core("n2").end_index == 3_000, 30_000)

    assert cluster.now - started < 6_000


def test_102_the_others_and_new_appends_are_not_slowed_down():
    cluster = lagging(3_000, 10)
    cluster.run_for(2_500)
    number = cluster.propose("n0")
    cluster.run_for(20)

    assert cluster.finished[number] is ResponseCode.SUCCESS
    assert cluster.core("n1").end_index == 3_001
    assert cluster.core("n2").end_index < 100
