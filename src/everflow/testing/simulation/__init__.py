"""Deterministic simulation of a whole group from one seed: see docs/design/007-simulation.md.

`Simulation` is a group to do things to; `forecast` tells what a scaling step would do, as
``everflow simulate`` does. Below: `scheduler` (time), `network`, `group_coordinator`, `log`, `disk`
(what is simulated), `instance` and `worker` (which run the real decisions), `checks` (the
invariants). May import everything; nothing below imports it.
"""

from everflow.testing.simulation.checks import InvariantError
from everflow.testing.simulation.forecast import Forecast, Step, forecast
from everflow.testing.simulation.settings import SimulatedSubTopology, SimulationSettings, Timings
from everflow.testing.simulation.simulation import Simulation

__all__ = [
    "Forecast",
    "InvariantError",
    "SimulatedSubTopology",
    "Simulation",
    "SimulationSettings",
    "Step",
    "Timings",
    "forecast",
]
