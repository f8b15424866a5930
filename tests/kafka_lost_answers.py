"""A broker behind a proxy that loses every other answer to producers, and what they make of it."""

from contextlib import contextmanager

from confluent_kafka.admin import AdminClient, NewTopic

from kafka_load import Records, read_all
from kafka_nodes import SECONDS, kafka_nodes
from kafka_proxy import losing_answers
from quorumlog.local.ports import free_ports

COUNT = 60
PARTITIONS = 2
SPREAD_S = 1.0
"""So that most records are batches of their own."""
LOST_EVERY = 2


@contextmanager
def broker_that_loses_answers(directory):
    """Yield what clients connect to, and the loss, which counts."""
    (port,) = free_ports(1)
    place = f"127.0.0.1:{port}"
    with (
        kafka_nodes(directory, 1, kafka_advertised=place) as cluster,
        losing_answers({place: cluster.servers}, LOST_EVERY) as loss,
    ):
        yield place, loss


def check_stored_once(broker, topic, work):
    """Have a producer write to a topic: every record is there once, where it was told to be."""
    servers, loss = broker
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(SECONDS)
    records, lost = Records(topic, PARTITIONS), loss.done["answers lost"]
    work(servers, records, topic, COUNT, SPREAD_S)
    contents = read_all(servers, topic, PARTITIONS, SECONDS)
    assert records.counts() == (COUNT, COUNT, 0)
    assert sum(map(len, contents.values())) == COUNT
    assert records.faults_in(contents) == []
    assert loss.done["answers lost"] > lost
