"""What KIP-415's authors measured of Kafka Connect: 900 connectors through a rolling bounce, a lost
worker that comes back, and one connector more. `simulated` has large groups, `measure` three real
instances with Kafka Connect beside them."""
