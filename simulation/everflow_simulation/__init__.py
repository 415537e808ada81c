"""Deterministic simulation of a whole group from one seed: see docs/design/007-simulation.md.

A package of its own, which everflow's wheel carries; of everflow only `everflow simulate` imports
it, and its tests are in tests/unit/testing and tests/properties.

`Simulation` is a group to do things to; `forecast` tells what a scaling step would do, as
``everflow simulate`` does. Below: `scheduler` (time), `network`, `group_coordinator`, `log`, `disk`
(what is simulated), `instance` and `worker` (which run the real decisions), `checks` (the
invariants). Beside it `pacing` runs stream threads alone: how often, at which cost. May import
everything of everflow.
"""

from everflow_simulation.checks import InvariantError
from everflow_simulation.forecast import Forecast, Step, forecast
from everflow_simulation.settings import SimulatedSubTopology, SimulationSettings, Timings
from everflow_simulation.simulation import Simulation

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
