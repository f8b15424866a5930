"""What the data source asks of a cluster: positions of readers, and what can be read."""

from types import SimpleNamespace

from quorumlog.client.consumer import GROUP_LENGTH_MAX
from quorumlog.spark.jobs import log_source
from quorumlog.spark.jobs.log_source import ClusterSource
from quorumlog.spark.source import clusters
from quorumlog.spark.source.clusters import Bounds, RemoteCluster, consumer_group_of


def test_a_reader_with_a_long_name_has_a_consumer_group_of_its_own():
    assert consumer_group_of("query", "flights") == "query.flights"
    assert consumer_group_of("é" * 241, "flights") == "é" * 241 + ".flights"
    long = [consumer_group_of("q" * 300 + last, "flights") for last in "ab"]
    assert {len(name) for name in long} == {GROUP_LENGTH_MAX}
    assert len(set(long)) == 2


def test_a_leader_is_believed_once_it_has_proved_that_it_leads(monkeypatch):
    def bounds(*, linearizable, isolation):
        return (0, 9) if linearizable else (0, 3)

    for module in (clusters, log_source):
        monkeypatch.setattr(module, "client_for", lambda *_: SimpleNamespace(bounds=bounds))
    cluster = RemoteCluster("h:1", 1)
    assert cluster.bounds("g", "read_committed") == Bounds(0, 10)
    assert cluster.bounds("g", "read_committed", unconfirmed=True) == Bounds(0, 4)
    assert ClusterSource("h:1", "g").bounds() == (0, 9)
