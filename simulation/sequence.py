"""A request while an engine has it, and the work of one step."""

from __future__ import annotations

from dataclasses import dataclass

from simulation.encoder_cache import EncoderHolds
from simulation.requests import SimulatedRequest

__all__ = ["Plan", "Sequence", "StepWork"]


class Sequence:
    """One request's progress.

    keys: of its blocks. num_tokens: prompt and tokens made so far. num_computed: tokens whose KV is computed
    or scheduled. placeholders: scheduled outputs that have not come back (asynchronous scheduling).
    in_flight: tokens of steps that have not come back; stale: those of them from before a preemption.
    cached_tokens: found at the first admission; -1 before it.
    """

    __slots__ = (
        "blocks",
        "cached_tokens",
        "encoder_holds",
        "in_flight",
        "is_gone",
        "is_running",
        "keys",
        "media_end",
        "num_cached_blocks",
        "num_computed",
        "num_preemptions",
        "num_tokens",
        "placeholders",
        "prompt_tokens",
        "request",
        "stale",
        "total_tokens",
    )

    def __init__(self, request: SimulatedRequest) -> None:
        self.request = request
        self.keys: list[int] = request.keys.tolist()
        self.prompt_tokens = request.prompt_tokens
        self.total_tokens = request.prompt_tokens + request.output_tokens
        self.media_end = request.media[-1].end if request.media else 0
        self.num_tokens = request.prompt_tokens
        self.num_computed = 0
        self.num_cached_blocks = 0
        self.blocks: list[int] = []
        self.encoder_holds: EncoderHolds = set()
        self.placeholders = 0
        self.in_flight = 0
        self.stale = 0
        self.cached_tokens = -1
        self.num_preemptions = 0
        self.is_running = False
        self.is_gone = False


@dataclass(slots=True)
class StepWork:
    """What one step computes; sums, because a step's time is linear in them (`Profile.step_ms`).

    prefill_context: of each prompt token computed, how many tokens it attends to, summed.
    decode_requests: sequences that compute one token after their prompt; decode_context: their lengths.
    encoder_squares: squared encoder tokens of each item, summed.
    loaded_tokens: whose KV comes from the lower tier.
    """

    prefill_tokens: int = 0
    prefill_context: int = 0
    decode_requests: int = 0
    decode_context: int = 0
    encoder_items: int = 0
    encoder_tokens: int = 0
    encoder_squares: int = 0
    loaded_tokens: int = 0

    def add_chunk(self, sequence: Sequence, num_tokens: int) -> None:
        done = sequence.num_computed
        if num_tokens == 1 and done >= sequence.prompt_tokens:
            self.decode_requests += 1
            self.decode_context += done
        else:
            self.prefill_tokens += num_tokens
            self.prefill_context += num_tokens * done + num_tokens * num_tokens // 2

    def add_item(self, encoder_tokens: int) -> None:
        self.encoder_items += 1
        self.encoder_tokens += encoder_tokens
        self.encoder_squares += encoder_tokens * encoder_tokens


class Plan:
    """One scheduled step.

    chunks: each sequence with the tokens that it computes, and whether that gives it an output token.
    """

    __slots__ = ("chunks", "encoder_budget", "preempted", "token_budget", "work")

    def __init__(self, token_budget: int, encoder_budget: int) -> None:
        self.token_budget = token_budget
        self.encoder_budget = encoder_budget
        self.chunks: list[tuple[Sequence, int, bool]] = []
        self.work = StepWork()
        self.preempted = False
