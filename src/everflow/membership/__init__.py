"""This instance as a member of the group `application.id`, on a thread of its own. May import
layers 0 and 1 (the decisions are in `everflow.assignment`) and `kafka.group_channel`."""
