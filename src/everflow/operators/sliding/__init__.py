"""Aggregates of sliding windows (note 024).

`sliding_book` says which windows records make and go into, `sliding_fold` what they hold,
`sliding_aggregate` are the operators. May import layers 0 and 1, as `everflow.operators`.
"""
