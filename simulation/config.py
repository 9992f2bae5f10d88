"""The settings of a simulated engine in a replica: `simulation:` of the application's settings."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from simulation.presets import preset
from simulation.profile import Profile

__all__ = ["SimulationConfig"]


def _sort_of_profile(value: object) -> str:
    return "name" if isinstance(value, str) else "values"


#: One of the two by what is given, so that a wrong value is not held against both.
_ProfileOrName = Annotated[
    Annotated[str, Tag("name")] | Annotated[Profile, Tag("values")], Discriminator(_sort_of_profile)
]


class SimulationConfig(BaseModel):
    """What the replica's engine is, and how fast its clock runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    profile: _ProfileOrName = Field(
        "instant",
        description="How long the engine's steps take: a preset's name, or the values of a profile "
        "(docs/simulated_engine.md).",
    )
    speedup: float = Field(
        1.0,
        ge=0,
        description="Simulated milliseconds that pass in a real one. 0 (or `.inf`): no step takes any time, "
        "so that what is left is what the service itself costs.",
    )
    num_blocks: int = Field(
        8192,
        ge=2,
        description="Blocks of the KV cache (vLLM's `num_gpu_blocks`). vLLM keeps one of them for itself. "
        "Fewer: earlier evictions, and preemptions.",
    )
    max_num_seqs: int = Field(256, ge=1, description="Requests that run at a time; others wait.")
    max_num_batched_tokens: int = Field(
        8192, ge=1, description="Tokens that one step computes at the most; longer prompts take several."
    )
    encoder_budget_tokens: int | None = Field(
        None,
        ge=1,
        description="Encoder tokens that one step computes at the most. None: `max_num_batched_tokens`, as "
        "vLLM has it.",
    )
    encoder_cache_tokens: int | None = Field(
        None,
        ge=1,
        description="Encoder tokens whose output is kept. None: `max_num_batched_tokens`, as vLLM has it.",
    )
    enable_prefix_caching: bool = Field(
        True, description="false: nothing is cached, and no events are published."
    )
    publishes_events: bool = Field(
        True,
        description="Whether KV events are published. false: the router guesses what the engine holds "
        "(`kv_events_off`).",
    )
    replay_batches: int = Field(
        10_000, ge=1, description="Event batches that are kept for a subscriber that missed some."
    )
    default_output_tokens: int = Field(
        128,
        ge=1,
        description="Tokens of an answer whose request says no `max_tokens`; it then ends as a model ends "
        "by itself (`stop`).",
    )
    decode_media: bool = Field(
        False,
        description="true: the replica decodes every picture, as it must for a real engine, to pay what that "
        "costs. false: it reads a picture's size from the file's header.",
    )

    @property
    def resolved_profile(self) -> Profile:
        """
        Raises:
            ValueError: no preset has the name.
        """
        if not isinstance(self.profile, str):
            return self.profile
        return preset(self.profile)
