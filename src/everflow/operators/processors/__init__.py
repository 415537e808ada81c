"""The processor API: what a user's processor is given, and the operator that runs it.

Design note 023. A processor is made anew for each task and micro-batch: what has to last is in its
stores.
"""
