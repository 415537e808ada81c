"""What the end of a membership means to the one who started this instance. Pure."""

from __future__ import annotations

from everflow.assignment.user_data import AnswerError, AssignmentData
from everflow.errors import (
    AssignmentFailedError,
    EverflowError,
    IncompatibleTopologyError,
    MissingSourceTopicError,
    ProcessIdClashError,
    ShutdownRequestedError,
)
from everflow.membership.assignor import Identity
from everflow.topology.fingerprint import difference


def refusal_error(group_id: str, data: AssignmentData, identity: Identity) -> EverflowError:
    """The error for an answer that is one, with what to do about it."""
    if data.error is AnswerError.INCOMPATIBLE_TOPOLOGY:
        return _other_program(group_id, data, identity)
    if data.error is AnswerError.PROCESS_ID_CLASH:
        return ProcessIdClashError(
            f"Application {group_id}: {data.message}. This instance was refused; the other goes "
            f"on. Give this instance a state "
            "folder of its own: point state.dir somewhere else, or delete the copy (the state is "
            "restored from the changelogs). If "
            "the other was only stopped, start again when its session has ended "
            "(session.timeout.ms)."
        )
    if data.error is AnswerError.INCOMPLETE_SOURCE_METADATA:
        return MissingSourceTopicError(
            f"Application {group_id}: {data.message}. Was it deleted? Create it again, or take it "
            f"out of the program; then start "
            "the instances again."
        )
    if data.error is AnswerError.SHUTDOWN_REQUESTED:
        return ShutdownRequestedError(f"Application {group_id} shuts down: {data.message}.")
    return AssignmentFailedError(
        f"Application {group_id}: {data.message}. No task was assigned, so this instance stops."
    )


def unheard_error(group_id: str, waited_s: float) -> ShutdownRequestedError:
    """For one that asked all to end and is not alone in the group after ``waited_s`` seconds."""
    return ShutdownRequestedError(
        f"Application {group_id} shuts down, as this instance asked. Not all others were seen to "
        f"end within {waited_s:g} s: look whether some still run."
    )


def _other_program(
    group_id: str, data: AssignmentData, identity: Identity
) -> IncompatibleTopologyError:
    differs = difference(identity.topology, data.reference) if data.reference else ""
    shown = (
        f"Difference (+ this program, - the running one):\n{differs}"
        if differs
        else (
            f"The lines of the running program (fingerprint {data.topology}) were not at hand; "
            f"compare describe() of both."
        )
    )
    return IncompatibleTopologyError(
        f"Application {group_id}: this instance's program does not fit the one that the group "
        f"runs, so it was refused; the others "
        f"go on. {shown}\nStart it under an application.id of its own, or, where no store has "
        f"other types, stop all "
        "instances before the new program starts.",
        difference=differs,
    )
