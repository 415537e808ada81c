"""Faults against real instances under load; afterwards every output and every store is checked."""
