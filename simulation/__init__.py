"""An engine that costs nothing to run: vLLM's scheduler and caches, with modelled time."""

from simulation.engine import SimulatedEngine, Step, StepOutput
from simulation.errors import RequestRefused, RoleNotSimulated, SimulationError, Stuck
from simulation.events import CPU, GPU, Cleared, Event, Removed, Stored
from simulation.profile import Profile
from simulation.requests import SimulatedMedia, SimulatedRequest
from simulation.sequence import StepWork
from simulation.spec import EngineSpec

__all__ = [
    "CPU",
    "GPU",
    "Cleared",
    "EngineSpec",
    "Event",
    "Profile",
    "Removed",
    "RequestRefused",
    "RoleNotSimulated",
    "SimulatedEngine",
    "SimulatedMedia",
    "SimulatedRequest",
    "SimulationError",
    "Step",
    "StepOutput",
    "StepWork",
    "Stored",
    "Stuck",
]
