"""What the cluster's topics are, and where they end.

At the start `internal_topics` creates and checks ours, and checks that outputs exist. While the
instance runs: `topic_watch` asks whether topics are still the same, `end_offsets` where inputs and
changelogs end, and whether one ends before what was read; `partition_racks` asks for the racks of
replicas, and `idle_sources` measures for how long inputs have been idle.
May import layers 0 and 1: no engine (they ask through ports), no other room. All of it runs in the
driver.
"""
