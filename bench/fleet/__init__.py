"""A fleet in a standalone Spark cluster of this machine, and what a lost worker costs it."""
