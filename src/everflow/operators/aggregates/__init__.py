"""Aggregates of groups: built-in ones as columns, functions record by record, in every window kind.

"""
