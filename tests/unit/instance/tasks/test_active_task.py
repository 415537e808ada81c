"""What a task takes over of a batch that was committed."""

from everflow.instance.tasks.task import ActiveTask
from everflow.protocol.messages import COMMITTED, BatchResult
from everflow.records import TaskId, TopicPartition

TASK, IN = TaskId(0, 0), TopicPartition("in", 0)


def batch(at: int, due_ms: int) -> BatchResult:
    return BatchResult(
        outcome=COMMITTED, consumed={IN: at}, stream_times={TASK: {"p": -1, "p/plan": due_ms}}
    )


def test_a_batch_that_only_a_clock_made_is_the_last_one_of_its_stores() -> None:
    """The worker wrote its id into all stores of the task, also into those that it did not change:
    the next batch names it, or is refused."""
    task = ActiveTask(id=TASK, inputs=(IN,), positions={IN: 5})
    assert task.take(batch(5, 1_000), "b.0.0") == 0
    assert task.last_batch == "b.0.0"
    assert task.take(batch(5, 2_000), "b.1.0") == 0
    assert task.last_batch == "b.1.0"
    task.take(batch(5, 2_000), "b.2.0")
    assert task.last_batch == "b.1.0", "nothing of the task was in it, and no store has its id"
    assert task.take(batch(7, 2_000), "b.3.0") == 2
    assert task.last_batch == "b.3.0"
