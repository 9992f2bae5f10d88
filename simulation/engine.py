"""An engine that computes nothing: vLLM's scheduler and caches, and a profile's time.

It has no clock. Its owner calls `step` when the step before is over, lets `Step.duration_ms` pass, and then
shows the step's outputs and publishes its events: vLLM, too, publishes what a step changed when its output
has come back (`Scheduler.update_from_output`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sightline_types import EngineLoad
from simulation.errors import RequestRefused, Stuck
from simulation.events import Event
from simulation.profile import Profile
from simulation.requests import SimulatedMedia, SimulatedRequest
from simulation.scheduler import Scheduler
from simulation.sequence import Plan, Sequence, StepOutput, StepWork
from simulation.spec import EngineSpec

__all__ = ["SimulatedEngine", "Step", "StepOutput"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step: what it changed in the caches, how long it takes, and what is true when it is over.

    duration_ms: from this call of `step` to the next one.
    events: in the engine's order. outputs: in its scheduling order.
    work: what the step computed.
    """

    duration_ms: float
    events: tuple[Event, ...]
    outputs: tuple[StepOutput, ...]
    work: StepWork

    @property
    def num_scheduled_tokens(self) -> int:
        return self.work.prefill_tokens + self.work.decode_requests


class SimulatedEngine:
    """One engine. Not thread-safe; nothing in it waits."""

    def __init__(self, spec: EngineSpec, profile: Profile) -> None:
        self.spec = spec
        self.profile = profile
        self._scheduler = Scheduler(spec)
        self._sequences: dict[str, Sequence] = {}
        self._in_flight: deque[Plan] = deque()
        self._depth = 2 if spec.async_scheduling else 1

    def add(self, request: SimulatedRequest) -> None:
        """The request waits from now on.

        Raises:
            RequestRefused: vLLM would refuse it, or it could never finish here, or it is known already.
        """
        if request.request_id in self._sequences:
            raise RequestRefused(f"request {request.request_id!r} is here already")
        _check_lengths(request, self.spec)
        _check_media(request, self.spec)
        sequence = Sequence(request, self.spec.max_model_len)
        self._sequences[request.request_id] = sequence
        self._scheduler.waiting.append(sequence)

    def abort(self, request_id: str) -> None:
        """Forget a request; its full blocks stay findable. One that is not here is no error: it has ended."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._scheduler.remove(sequence)

    def clear(self) -> bool:
        """Forget every cached block (vLLM's `reset_prefix_cache`); False while a request holds one.

        The `Cleared` event comes with the next step, as vLLM's does.
        """
        return self._scheduler.kv.clear()

    def step(self) -> Step | None:
        """Run the next step; None where there is nothing to do.

        Raises:
            Stuck: requests wait and none can be scheduled (never, for requests that `add` took).
        """
        queue = self._in_flight
        while self._sequences or queue:
            if self._sequences:
                queue.append(self._scheduler.schedule())
                if len(queue) < self._depth:
                    continue
            oldest = queue.popleft()
            if oldest.chunks:
                return self._complete(oldest)
            self._check_progress(oldest)
        return None

    def _check_progress(self, empty: Plan) -> None:
        """A step with nothing in it is no trouble while another has something, or gave back blocks."""
        if self._sequences and not any(plan.chunks or plan.preempted for plan in (empty, *self._in_flight)):
            raise Stuck(f"{len(self._scheduler.waiting)} requests wait, and none fits")

    def _complete(self, plan: Plan) -> Step:
        outputs = self._scheduler.complete(plan)
        for output in outputs:
            if output.is_finished:
                del self._sequences[output.request_id]
        duration_ms = self.profile.step_ms(plan.work)
        return Step(duration_ms, self._scheduler.kv.take_events(), tuple(outputs), plan.work)

    def load(self) -> EngineLoad:
        """Requests running and waiting, and the share of KV blocks that they hold."""
        scheduler = self._scheduler
        return EngineLoad(len(scheduler.running), len(scheduler.waiting), scheduler.kv.pool.usage)

    @property
    def is_idle(self) -> bool:
        """No request is here."""
        return not self._sequences

    @property
    def queued_prefill_tokens(self) -> int:
        """Tokens that are not computed yet, of all requests here; what a waiting one will find cached
        included."""
        return sum(s.num_tokens - s.num_computed for s in self._sequences.values() if not s.placeholders)


def _check_lengths(request: SimulatedRequest, spec: EngineSpec) -> None:
    prompt, total = request.prompt_tokens, request.prompt_tokens + request.output_tokens
    if prompt < 1 or request.output_tokens < 1:
        raise RequestRefused(f"{prompt} prompt and {request.output_tokens} output tokens: at least 1 of each")
    if prompt >= spec.max_model_len:
        raise RequestRefused(
            f"a prompt of {prompt} tokens leaves no room for an output: max_model_len={spec.max_model_len}"
        )
    computed = min(total, spec.max_model_len) - 1
    if computed > spec.kv_capacity_tokens:
        raise RequestRefused(
            f"{computed} tokens need more than the {spec.kv_capacity_tokens} that the KV cache holds: raise "
            f"num_blocks={spec.num_blocks}"
        )
    if len(request.keys) < computed // spec.block_size:
        raise RequestRefused(
            f"{len(request.keys)} keys for {computed // spec.block_size} blocks of {spec.block_size} tokens"
        )


def _check_media(request: SimulatedRequest, spec: EngineSpec) -> None:
    limit = min(spec.encoder_budget, spec.encoder_cache)
    position = 0
    for item in request.media:
        if item.offset < position or item.length < 1 or item.end > request.prompt_tokens:
            raise RequestRefused(
                f"media at {item.offset}, {item.length} tokens: by offset, apart, and within the prompt of "
                f"{request.prompt_tokens} tokens"
            )
        if item.encoder_tokens > limit:
            raise RequestRefused(_too_large(item, limit))
        position = item.end


def _too_large(item: SimulatedMedia, limit: int) -> str:
    return (
        f"an item of {item.encoder_tokens} encoder tokens, where {limit} fit: raise encoder_budget_tokens "
        "and encoder_cache_tokens"
    )
