"""The topologies the benchmarks run with `everflow run`."""
