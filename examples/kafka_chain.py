"""Carry records from one topic to another with confluent-kafka, each once: a chain of transactions.

    python examples/kafka_chain.py 127.0.0.1:9092,127.0.0.1:9093 orders invoices [NAME]

The topic orders must exist; its values are JSON. This creates it, with some:
    seq 100 | sed 's/.*/{"id": &, "count": 2, "price": 5}/' | kcat -b 127.0.0.1:9092 -P -t orders

What is consumed, what is produced from it, and the offsets are in one transaction. Kill it at any
time and start it again: each order has one invoice for whoever reads committed records. A later one
of the same NAME fences an earlier one. It ends when all orders are done.
"""

import json
import sys

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

if len(sys.argv) not in (4, 5):
    raise SystemExit(__doc__)
servers, orders, invoices, name = [*sys.argv[1:], "chain"][:4]
settings = {
    "bootstrap.servers": servers,
    "group.id": name,
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,  # offsets are committed by the producer
    "enable.partition.eof": True,
}
consumer = Consumer(settings)
consumer.subscribe([orders])
producer = Producer({"bootstrap.servers": servers, "transactional.id": name})
producer.init_transactions()  # fences whoever had this name, and waits for what that one began
done, ended = 0, set()
while not ended or len(ended) < len(consumer.assignment()):
    records = []
    for message in consumer.consume(500, timeout=1):
        if not message.error():
            records.append(message)
            ended.discard(message.partition())
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        else:
            raise SystemExit(message.error().str())
    if not records:
        continue
    producer.begin_transaction()
    for record in records:
        order = json.loads(record.value())
        invoice = {"order": order["id"], "total": order["count"] * order["price"]}
        producer.produce(invoices, json.dumps(invoice), key=record.key())
    positions = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
    try:
        producer.commit_transaction()
    except KafkaException as failed:
        if failed.args[0].txn_requires_abort():
            producer.abort_transaction()
        raise SystemExit(f"not committed, start again to go on: {failed}") from failed
    done += len(records)
consumer.close()
print(f"{done} orders done")
