"""Consumer groups by Kafka's classic protocol: who is a member, and who has which partitions."""
