"""Deterministic simulation of a whole group from one seed: see docs/design/007-simulation.md."""
