"""Benchmarks of everflow beside Kafka Streams: `python -m bench.run NAME`, from the root of the
checkout."""
