"""The cluster's topics: what they are, and where they end. May import layers 0 and 1: no engine
(they ask through ports), no other room."""
