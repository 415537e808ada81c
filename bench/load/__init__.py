"""Senders and probes of latency benches: each a process of its own, by one schedule."""
