"""A request while an engine has it, and the work of one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from simulation.encoder_cache import EncoderHolds
from simulation.requests import SimulatedRequest

__all__ = ["Plan", "Sequence", "StepOutput", "StepWork"]


class StepOutput(NamedTuple):
    """What one request got in a step.

    new_tokens: output tokens. is_first: its first ones. is_finished: its last ones.
    cached_tokens: of its prompt, found when it was first admitted (vLLM's `num_cached_tokens`); with every
        output. num_preemptions: so far.
    """

    request_id: str
    new_tokens: int
    is_first: bool
    is_finished: bool
    cached_tokens: int
    num_preemptions: int


class Sequence:
    """One request's progress.

    keys: of its blocks. num_tokens: prompt and tokens made so far. num_computed: tokens whose KV is computed
    or scheduled. placeholders: scheduled outputs that have not come back (asynchronous scheduling).
    in_flight: tokens of steps that have not come back (asynchronous scheduling); stale: those of them from
    before a preemption.
    middle_output: what the next token means while it is one among others; None where more may happen.
    cached_tokens: found at the first admission; -1 before it. end_tokens: it ends when it has so many.
    next_full: computed tokens that fill its next block.
    quiet_end: while it computes one token and then has fewer computed than these, nothing happens to its
    blocks, and it does not end.
    """

    __slots__ = (
        "blocks",
        "cached_tokens",
        "encoder_holds",
        "end_tokens",
        "in_flight",
        "is_gone",
        "is_running",
        "keys",
        "media_end",
        "middle_output",
        "next_full",
        "num_cached_blocks",
        "num_computed",
        "num_preemptions",
        "num_tokens",
        "placeholders",
        "prompt_tokens",
        "quiet_end",
        "request",
        "stale",
    )

    def __init__(self, request: SimulatedRequest, max_model_len: int) -> None:
        self.request = request
        self.keys: list[int] = request.keys.tolist()
        self.prompt_tokens = request.prompt_tokens
        self.end_tokens = min(request.prompt_tokens + request.output_tokens, max_model_len)
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
        self.next_full = 0
        self.quiet_end = 0
        self.is_running = False
        self.is_gone = False
        self.middle_output: StepOutput | None = None

    def output(self, *, is_steady: bool) -> StepOutput:
        """What it got with its newest token. is_steady: nothing but tokens is to come until its last."""
        is_first = self.num_tokens == self.prompt_tokens + 1
        output = StepOutput(
            self.request.request_id, 1, is_first, self.is_gone, self.cached_tokens, self.num_preemptions
        )
        self.middle_output = output._replace(is_first=False) if is_steady else None
        return output


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
