"""An engine that costs nothing to run: vLLM's scheduler and caches, with modelled time."""

from simulation.engine import SimulatedEngine, Step
from simulation.errors import RequestRefused, RoleNotSimulated, SimulationError, Stuck
from simulation.events import CPU, GPU, Cleared, Event, Removed, Stored
from simulation.fitting import Fit, FitError, Measurement, fit
from simulation.presets import PRESETS, preset
from simulation.profile import Profile
from simulation.requests import SimulatedMedia, SimulatedRequest
from simulation.sequence import StepOutput, StepWork
from simulation.spec import EngineSpec

__all__ = [
    "CPU",
    "GPU",
    "PRESETS",
    "Cleared",
    "EngineSpec",
    "Event",
    "Fit",
    "FitError",
    "Measurement",
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
    "fit",
    "preset",
]
