"""Aggregates of groups: built-in ones as columns, functions by record, in every kind of window."""
