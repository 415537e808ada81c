"""The cluster's topics: what they are, and where they end.

At the start `internal_topics` creates and checks internal topics, and checks that outputs exist.
While the instance runs `topic_watch` checks that topics are still the same, and `end_offsets` asks
for the ends of inputs and changelogs and for the racks of replicas.
May import layers 0 and 1: no engine (they ask through ports), no other room. It runs in the driver.
"""
