"""What a fleet decides: Spark's settings, a keeper's next act, what is told."""

from dataclasses import replace

import pytest

from everflow.errors import ConfigError
from everflow.fleet.decision import (
    AGAIN_S,
    DRIVER_SILENT_S,
    PLACE_S,
    STOP_S,
    Act,
    KeeperSees,
    PlacesTold,
    Report,
    Wanted,
    answer,
    instance_environment,
    instance_settings,
    keeper_act,
    moved,
    require_cluster,
    require_not_own,
    shown_lines,
    spark_settings,
)

GOES = KeeperSees(executor_there=True, silent_s=0.0, wanted=Wanted.run)
LOST = DRIVER_SILENT_S + 1


def test_one_executor_is_one_place() -> None:
    found = spark_settings("orders", 3, 2, "1g", {"spark.executor.memory": "4g"})
    assert found["spark.executor.cores"] == found["spark.task.cpus"] == "2"
    assert found["spark.dynamicAllocation.initialExecutors"] == "3"
    assert found["spark.executor.memory"] == "4g", "what is given wins"


@pytest.mark.parametrize("master", ["local", "local[4]", "local[*,1]", "local-cluster[1,1,1]"])
def test_one_machine_is_no_cluster(master: str) -> None:
    with pytest.raises(ConfigError, match="everflow autoscale"):
        require_cluster(master)


def test_a_master_has_to_be_named() -> None:
    with pytest.raises(ConfigError, match="--master is missing"):
        require_cluster(None)
    assert require_cluster("yarn") == "yarn"


@pytest.mark.parametrize("key", ["group.instance.id", "state.dir", "http.listen"])
def test_what_the_fleet_sets_itself_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        require_not_own({"application.id": "a", key: "x"})


def test_the_number_of_a_slot_is_its_member() -> None:
    found = instance_settings({"application.id": "orders", "commit.interval.ms": 50}, "orders", 3)
    assert found == {
        "application.id": "orders",
        "commit.interval.ms": "50",
        "group.instance.id": "orders-3",
    }


def test_an_instance_is_no_part_of_the_spark_that_hosts_it() -> None:
    found = instance_environment(
        {
            "HOME": "/root",
            "SPARK_HOME": "/opt/spark",
            "SPARK_SUBMIT_OPTS": "-Xint",
            "PYSPARK_GATEWAY_PORT": "1",
            "PYTHON_WORKER_FACTORY_SECRET": "s",
            "PYTHONPATH": "/opt/spark/python/lib/pyspark.zip:/opt/py4j-0.10.9.9-src.zip:/libs",
        },
        "/venv/bin/python",
    )
    assert found == {
        "HOME": "/root",
        "SPARK_SUBMIT_OPTS": "-Xint",
        "PYTHONPATH": "/libs",
        "PYSPARK_PYTHON": "/venv/bin/python",
    }


@pytest.mark.parametrize(
    ("sees", "act"),
    [
        (GOES, Act.go_on),
        (replace(GOES, wanted=Wanted.drain), Act.drain),
        (replace(GOES, wanted=Wanted.stop), Act.stop),
        (replace(GOES, executor_there=False), Act.stop),
        (replace(GOES, silent_s=LOST), Act.stop),
        # it is told once
        (replace(GOES, wanted=Wanted.drain, ending=Wanted.drain), Act.go_on),
        (replace(GOES, wanted=Wanted.stop, ending=Wanted.stop), Act.go_on),
        # nobody is left for whom it would drain
        (replace(GOES, wanted=Wanted.drain, ending=Wanted.drain, silent_s=LOST), Act.stop),
        # a time for each end
        (replace(GOES, executor_there=False, ending=Wanted.stop, ending_s=STOP_S + 1), Act.kill),
        (replace(GOES, wanted=Wanted.drain, ending=Wanted.drain, ending_s=STOP_S + 1), Act.go_on),
        (replace(GOES, wanted=Wanted.drain, ending=Wanted.drain, ending_s=121.0), Act.kill),
        # the driver came back: an end that has begun goes on
        (replace(GOES, ending=Wanted.stop, ending_s=1.0), Act.go_on),
        (replace(GOES, executor_there=False, code=0), Act.done),
    ],
)
def test_what_a_keeper_does_next(sees: KeeperSees, act: Act) -> None:
    assert keeper_act(sees, drain_s=120.0) is act


@pytest.mark.parametrize("wanted", list(Wanted))
def test_a_keeper_whose_task_runs_elsewhere_by_now_stops(wanted: Wanted) -> None:
    assert answer(wanted, newest=7, attempt=6) is Wanted.stop
    assert answer(wanted, newest=7, attempt=7) is wanted
    assert answer(wanted, newest=7, attempt=8) is wanted


def test_a_keeper_of_no_slot_stops() -> None:
    assert answer(None, newest=-1, attempt=0) is Wanted.stop


def test_a_place_is_told_once_and_its_loss_too() -> None:
    comes = Report(slot=2, attempt=4, host="one", phase="comes", log="/s/log")
    runs = replace(comes, phase="runs")
    assert moved(None, comes) is None
    assert moved(comes, runs) == "instance 2 runs on one, its log there: /s/log"
    assert moved(runs, runs) is None
    elsewhere = replace(comes, attempt=9, host="two")
    assert moved(runs, elsewhere) == "instance 2 lost its executor on one; it restarts on two"
    waits = moved(elsewhere, replace(elsewhere, phase="waits"))
    assert waits == "instance 2 waits on two for its earlier process there to end"


def test_lines_say_whose_they_are() -> None:
    report = Report(
        slot=2, attempt=4, host="one", phase="runs", log="/s/log", lines=["a", "b"], left_out=7
    )
    assert shown_lines(report) == ["2@one | (7 lines are only in /s/log)", "2@one | a", "2@one | b"]


def test_too_few_places_are_told_once_and_then_seldom() -> None:
    told = PlacesTold(cores=1, memory="512m")
    assert told.text({1: 0.0, 2: PLACE_S - 1}, 0.0) is None
    text = told.text({1: 0.0, 2: PLACE_S, 3: PLACE_S}, 1.0)
    assert text is not None
    assert text.startswith("2 of 3 instances have no executor (2, 3): each takes")
    assert "ask for 1 instances" in text
    assert told.text({1: 0.0, 2: PLACE_S + 1, 3: PLACE_S + 1}, 2.0) is None
    assert told.text({1: 0.0, 2: 0.0, 3: 99.0}, 3.0) is None, "it gets better: no new line"
    assert told.text({1: 0.0, 2: 0.0, 3: 99.0}, 3.0 + AGAIN_S) is not None
    assert told.text({1: 0.0, 2: 0.0, 3: 0.0}, 9e9) is None
    assert told.text({1: 99.0, 2: 0.0, 3: 0.0}, 9e9) is not None
