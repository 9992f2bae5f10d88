"""Errors of the simulation, all of them `SimulationError`:

SimulationError
├── RequestRefused (engine): vLLM would refuse the request, or never be able to finish it; a ValueError
├── RoleNotSimulated (engine): a role that is named, and not built yet; a ValueError
├── FitError (fitting): the measurements do not settle a profile; a ValueError
├── Stuck (engine): requests wait and none can ever be scheduled: a fault of the simulation
└── WorkloadError: a workload cannot be made as asked; a ValueError
    └── TraceError (traces): a trace cannot be read
"""

from __future__ import annotations

__all__ = ["RequestRefused", "RoleNotSimulated", "SimulationError", "Stuck", "TraceError", "WorkloadError"]


class SimulationError(Exception):
    """Base of the errors that the simulation raises."""


class RequestRefused(SimulationError, ValueError):
    """The request cannot be served by an engine of this spec."""


class RoleNotSimulated(SimulationError, ValueError):
    """The role has a name here, and no engine yet."""


class Stuck(SimulationError):
    """Nothing runs, nothing can be admitted, and yet requests wait."""


class WorkloadError(SimulationError, ValueError):
    """A workload cannot be made as asked. The message names the value and the way out."""


class TraceError(WorkloadError):
    """A trace that cannot be read. The message names file, line, and what is wrong."""
