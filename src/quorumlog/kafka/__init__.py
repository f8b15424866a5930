"""The Kafka protocol: bytes of Kafka's clients in, values out, and back.

Requests are cut out of what is received (`frames`), read, and answered. `codec` reads and writes
all of them by Kafka's schemas, but for those that carry records: `produce` and `fetch` read and
write these where they are, without copying them.
"""
