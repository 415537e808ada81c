"""Rows of a topic that go to sinks outside Kafka."""
