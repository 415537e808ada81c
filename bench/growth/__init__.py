"""What becomes of a system as keys, partitions, records and state grow (`bench growth`)."""
