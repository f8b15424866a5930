"""How the data source reports positions of readers."""

from quorumlog.client.consumer import GROUP_LENGTH_MAX
from quorumlog.spark.source.clusters import consumer_group_of


def test_a_reader_with_a_long_name_has_a_consumer_group_of_its_own():
    assert consumer_group_of("query", "flights") == "query.flights"
    assert consumer_group_of("é" * 241, "flights") == "é" * 241 + ".flights"
    long = [consumer_group_of("q" * 300 + last, "flights") for last in "ab"]
    assert {len(name) for name in long} == {GROUP_LENGTH_MAX}
    assert len(set(long)) == 2
