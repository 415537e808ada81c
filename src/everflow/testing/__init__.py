"""The test kit: an embedded broker, and waiting for conditions."""
