"""Who runs what: the assignor's decision, from values to values. Parts of it are public (KIP-924).

Read `cluster_state` (what is known, what is answered), then `assignor` (the whole decision):
`target` and `standbys` with `flow` find the target assignment, `refine` takes as much of it as may
be now, `lags` holds tasks back. Own assignors get, answer and build on `api`; members exchange the
bytes of `user_data`.
May import layer 0: no I/O, threads, clock, Spark, Kafka or LMDB. The leader of a group runs
it, on the membership's thread.
"""

from everflow.assignment.api import (
    ApplicationState,
    AssignmentError,
    KafkaStreamsAssignment,
    KafkaStreamsState,
    TaskAssignment,
    TaskAssignor,
    default_standby_assignment,
    identity_assignment,
    optimize_rack_aware_active_tasks,
    optimize_rack_aware_standby_tasks,
)

__all__ = [
    "ApplicationState",
    "AssignmentError",
    "KafkaStreamsAssignment",
    "KafkaStreamsState",
    "TaskAssignment",
    "TaskAssignor",
    "default_standby_assignment",
    "identity_assignment",
    "optimize_rack_aware_active_tasks",
    "optimize_rack_aware_standby_tasks",
]
