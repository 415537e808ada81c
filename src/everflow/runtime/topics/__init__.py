"""What the cluster's topics are, and where they end.

At the start: `internal_topics` creates and checks ours, `output_topics` looks for those that are
written to. While it runs: `topic_watch` asks whether they are still the same, `end_offsets` where
inputs end, `shrunk_logs` whether one ends before what was read, `end_sums` and `partition_racks`
what the leader of the group wants to know.
May import layers 0 and 1: no engine (they ask through ports), no other room. All of it runs in the
driver.
"""
