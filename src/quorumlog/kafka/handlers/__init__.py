"""What is done for each request of Kafka's clients; one module for each family of requests."""
