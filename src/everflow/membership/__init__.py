"""This instance as a member of the group `application.id`, on a thread of its own. May import
layer 0, assignment (which decides), topology and `kafka.group_channel`."""
