"""What is simulated: how many workers of which kind, how far away, and what befalls them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from router import RouterConfig
from simulation.profile import Profile
from simulation.spec import EngineSpec

__all__ = ["POLICIES", "Change", "Scenario", "config_of"]

#: By their names on the command line; `oracle` is `kv` where every event is known at once.
POLICIES = (
    "kv", "kv_blocks", "round_robin", "power_of_two", "least_loaded", "media_sticky", "approximate", "oracle",
)  # fmt: skip


class Change(BaseModel):
    """Something happens to the fleet."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at_s: float = Field(ge=0, description="Seconds from the beginning.")
    kind: Literal["join", "leave", "die"] = Field(
        description="`join`: workers with empty caches come. `leave`: one gets no more, and ends what it "
        "has. `die`: one is gone, and its requests start again elsewhere."
    )
    number: int = Field(
        1,
        ge=0,
        le=10_000,
        description="How many join; else which one (by its number, from 0) leaves or dies.",
    )


class Scenario(BaseModel):
    """Defaults are a small fleet in one rack, with the relay's and the router's own times."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    num_workers: int = Field(8, ge=1, description="Workers at the beginning, all alike.")
    engine: EngineSpec = Field(default_factory=EngineSpec, description="Sizes of each worker's engine.")
    profile: Profile = Field(description="How long each worker's steps take.")
    router: RouterConfig = Field(
        default_factory=RouterConfig, description="As in the application; the policy is the run's."
    )
    ingress_ms: float = Field(
        3.0, ge=0, description="Milliseconds from the client's sending to the question to the router."
    )
    dispatch_ms: float = Field(1.0, ge=0, description="Milliseconds from the decision to the engine's queue.")
    event_delay_ms: float = Field(
        2.0,
        ge=0,
        allow_inf_nan=False,
        description="Milliseconds that a worker's message takes to the router, each way the same.",
    )
    event_loss: float = Field(
        0.0, ge=0, lt=1, description="Share of the workers' messages that are lost; the next one is a table."
    )
    notice_ms: float = Field(
        1000.0, ge=0, description="Milliseconds until a worker's death is noticed by those who wait for it."
    )
    changes: tuple[Change, ...] = Field((), description="What befalls the fleet.")
    sample_ms: float = Field(500.0, gt=0, description="Milliseconds between two looks at each worker's load.")
    seed: int = Field(0, description="Of the policies' and the losses' random numbers.")

    @model_validator(mode="after")
    def _changes_name_workers(self) -> Scenario:
        """Raises where a worker leaves or dies that has not come by then."""
        count = self.num_workers
        for change in sorted(self.changes, key=lambda change: change.at_s):
            if change.kind == "join":
                count += change.number
            elif change.number >= count:
                raise ValueError(
                    f"worker {change.number} cannot {change.kind} at {change.at_s:g} s: {count} came"
                )
        return self


def config_of(policy: str, scenario: Scenario) -> RouterConfig:
    """The router's settings for one of `POLICIES`."""
    name = "cost" if policy in ("kv", "oracle") else policy
    return RouterConfig.model_validate({**scenario.router.model_dump(), "policy": name})
