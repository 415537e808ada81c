"""The flights demo: real data through a real broker, exactly once, compared with a plain batch."""
