"""This instance as a member of the group `application.id`.

`member` joins and knows what is owned; `assignor` gives each member its answer when this one leads,
with `decision_text`; `follow_ups` decides when to ask for one more
rebalance; `own_assignor` runs an assignor of the user's.
May import layers 0 and 1 (the decisions are in `everflow.assignment`) and `kafka.group_channel`.
The driver runs it, on a thread of its own.
"""
