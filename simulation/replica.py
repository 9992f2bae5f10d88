"""A simulated worker: an engine whose steps take time, and the uplink that tells the router of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sightline_types import DecisionId, LifecycleEvent, LifecycleKind, WorkerId
from simulation.engine import SimulatedEngine, Step, StepOutput
from simulation.event_queue import EventQueue
from simulation.requests import SimulatedRequest
from simulation.uplink import Uplink

__all__ = ["Replica"]


@dataclass(slots=True)
class _Running:
    """What a replica keeps of a request. first_token_ms: after it was taken."""

    prompt_tokens: int
    taken_ms: float
    first_token_ms: float | None = None


class Replica:
    """on_step: told of each step when it is over, with its outputs.

    tells_early: the router hears of a step's events when the step begins (the oracle's fleet); as a rule
    when it ends, as vLLM publishes them.
    """

    def __init__(
        self,
        engine: SimulatedEngine,
        uplink: Uplink,
        queue: EventQueue,
        on_step: Callable[[Replica, Step], None],
        *,
        tells_early: bool = False,
    ) -> None:
        self.engine = engine
        self.uplink = uplink
        self.busy_ms = 0.0
        self.encoded_tokens = 0
        self.is_dead = False
        self.open: dict[str, _Running] = {}
        self._queue = queue
        self._on_step = on_step
        self._tells_early = tells_early
        self._is_busy = False

    @property
    def worker(self) -> WorkerId:
        return self.uplink.worker

    def submit(self, request: SimulatedRequest) -> None:
        """Take a request.

        Raises:
            RequestRefused: the engine could never serve it.
        """
        self.engine.add(request)
        self.open[request.request_id] = _Running(request.prompt_tokens, self._queue.now_ms)
        self.uplink.report(LifecycleEvent(LifecycleKind.STARTED, DecisionId(request.request_id)))
        if not self._is_busy:
            self._begin_step()

    def die(self) -> None:
        self.is_dead = True
        self.uplink.close()

    def _begin_step(self) -> None:
        step = self.engine.step()
        self._is_busy = step is not None
        if step is None:
            return
        self.busy_ms += step.duration_ms
        self.encoded_tokens += step.work.encoder_tokens
        if self._tells_early and step.events:
            self.uplink.note(step.events)
        self._queue.after(step.duration_ms, self._end_step, step)

    def _end_step(self, step: Step) -> None:
        if self.is_dead:
            return
        if step.events and not self._tells_early:
            self.uplink.note(step.events)
        for output in step.outputs:
            if output.is_first or output.is_finished:
                self._report(output)
        self._on_step(self, step)
        self._begin_step()

    def _report(self, output: StepOutput) -> None:
        decision_id = DecisionId(output.request_id)
        running = self.open[output.request_id]
        if output.is_first:
            running.first_token_ms = self._queue.now_ms - running.taken_ms
            self.uplink.report(LifecycleEvent(LifecycleKind.FIRST_TOKEN, decision_id))
        if output.is_finished:
            del self.open[output.request_id]
            self.uplink.report(
                LifecycleEvent(
                    LifecycleKind.END,
                    decision_id,
                    cached_tokens=output.cached_tokens,
                    prompt_tokens=running.prompt_tokens,
                    comparable=not output.num_preemptions,
                    first_token_ms=running.first_token_ms,
                )
            )
