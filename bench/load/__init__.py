"""`bench load`, programs at fixed paces; and the senders and probes of all latency benches: each a
process of its own, by one schedule."""
