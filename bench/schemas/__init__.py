"""Formats of a schema registry beside others' serdes: Java's, Spark's and fastavro's."""
