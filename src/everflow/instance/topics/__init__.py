"""The cluster's topics and their ends. May import layers 0 and 1; ports ask the engines."""
