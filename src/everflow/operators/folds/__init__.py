"""Folds whose state is more than one number: lists, sets, values by the order of others, sketches.

Read first `folding`, which folds there are, and `items`, what is folded. All of them give the same
wherever a micro-batch was cut and in whatever order sessions grew together, because what they keep
of a part is all that the whole needs of it. May import what `everflow.operators` may.
"""
