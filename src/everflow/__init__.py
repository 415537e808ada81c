"""everflow: Kafka Streams for PySpark."""
