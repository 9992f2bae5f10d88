"""What a simulated engine is: its sizes and limits, under vLLM's names where vLLM has one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from simulation.errors import RoleNotSimulated

__all__ = ["EngineSpec", "Role"]

Role = Literal["unified", "prefill", "decode", "encode"]


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """The sizes of one engine; defaults are vLLM 0.32's for a GPU where it has one.

    block_size: tokens a KV block.
    num_blocks: KV blocks, vLLM's `num_gpu_blocks`: one of them is never handed out.
    max_num_seqs: requests that run at once.
    max_num_batched_tokens: tokens that one step computes.
    max_model_len: prompt and output together.
    encoder_budget_tokens: encoder tokens that one step computes; None: `max_num_batched_tokens`.
    encoder_cache_tokens: encoder tokens kept; None: `max_num_batched_tokens`.
    async_scheduling: whether a step is scheduled while the one before it still runs (vLLM's default). A
        request that arrives then waits one step longer, and blocks come free one step later.
    lower_tier_blocks: blocks evicted from the GPU that a CPU tier keeps; 0: none.
    role: what the engine does; only `unified` (prefill and decode) is simulated.

    Raises:
        RoleNotSimulated: another role.
        ValueError: a size below its least.
    """

    block_size: int = 16
    num_blocks: int = 8192
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 32768
    encoder_budget_tokens: int | None = None
    encoder_cache_tokens: int | None = None
    enable_prefix_caching: bool = True
    async_scheduling: bool = True
    lower_tier_blocks: int = 0
    role: Role = "unified"

    def __post_init__(self) -> None:
        if self.role != "unified":
            raise RoleNotSimulated(f"role={self.role!r} of {get_args(Role)}: only 'unified' is simulated")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}={value}: at least {least}")

    @property
    def encoder_budget(self) -> int:
        """Encoder tokens a step."""
        budget = self.encoder_budget_tokens
        return self.max_num_batched_tokens if budget is None else budget

    @property
    def encoder_cache(self) -> int:
        """Encoder tokens kept."""
        cache = self.encoder_cache_tokens
        return self.max_num_batched_tokens if cache is None else cache

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that requests can hold together."""
        return (self.num_blocks - 1) * self.block_size


_LEAST = {
    "block_size": 1,
    "num_blocks": 2,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "max_model_len": 2,
    "encoder_budget_tokens": 0,
    "encoder_cache_tokens": 0,
    "lower_tier_blocks": 0,
}
