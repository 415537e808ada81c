"""What a user can do when offsets and topics no longer belong together: one text for all errors that say so."""

from __future__ import annotations


def start_over(application_id: str) -> str:
    """The steps, as a sentence that follows a full stop. What they delete cannot be brought back: say the likely cause first."""
    return (
        f"To start {application_id} over from its input: stop all its instances; delete its internal topics "
        f"({application_id}-...-changelog and {application_id}-...-repartition, with kafka-topics --delete --topic NAME), its "
        f"committed offsets (kafka-consumer-groups --delete --group {application_id}) and, on every machine, its folder "
        f"{application_id} in state.dir; then start the instances again."
    )


def read_again(application_id: str, topic: str) -> str:
    """How to go on, state kept, with an input topic that has lost what was read of it."""
    return (
        f"To keep the state and read {topic} as it is now from its beginning: stop all instances, then kafka-consumer-groups "
        f"--reset-offsets --to-earliest --execute --group {application_id} --topic {topic}, and start them again."
    )
