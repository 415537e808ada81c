"""Runs the same in everflow and in what it promises to equal, on cases drawn from a seed."""
