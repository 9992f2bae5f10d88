"""Random requests on a small simulated engine: nothing is lost, and the short way equals the long one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from simulation import (
    CPU,
    GPU,
    Cleared,
    EngineSpec,
    Profile,
    Removed,
    SimulatedEngine,
    SimulatedMedia,
    SimulatedRequest,
    Step,
    Stored,
)
from simulation.scheduler import Scheduler
from simulation.sequence import Plan
from tests.unit.simulated_requests import BLOCK, request

PROFILE = Profile(prefill_ms_per_token=0.1, decode_base_ms=7, decode_ms_per_context_token=0.01)
SPEC = EngineSpec(
    block_size=BLOCK,
    num_blocks=14,
    max_num_seqs=3,
    max_num_batched_tokens=12,
    max_model_len=44,
    encoder_budget_tokens=5,
    encoder_cache_tokens=7,
)


@st.composite
def prompts(draw: st.DrawFn) -> tuple[list[int], int, list[SimulatedMedia]]:
    """A prompt of few different beginnings, its output length, and its media."""
    tokens = [draw(st.integers(0, 1))] * draw(st.integers(1, 12))
    media = []
    for _ in range(draw(st.integers(0, 2))):
        length = draw(st.integers(1, 5))
        media.append(SimulatedMedia(len(tokens), length, 100 + length, length))
        tokens += [0] * length
    tokens += [draw(st.integers(2, 3))] * draw(st.integers(1, 6))
    return tokens, draw(st.sampled_from([1, 2, 5, 11, 20])), media


#: Arrive with a prompt, abort the oldest but some, clear, or step on.
OPERATIONS = st.lists(
    st.one_of(
        prompts(),
        st.sampled_from(["step", "step", "step", "clear"]),
        st.integers(0, 3),
    ),
    max_size=40,
)


class Driven:
    """An engine with the books of what went in and what came out."""

    def __init__(self, spec: EngineSpec, scheduler: type[Scheduler] = Scheduler) -> None:
        self.engine = SimulatedEngine(spec, PROFILE)
        self.engine._scheduler = scheduler(spec)
        self.requests: dict[str, SimulatedRequest] = {}
        self.aborted: set[str] = set()
        self.steps: list[Step] = []
        self.held: dict[str, Counter[int]] = {GPU: Counter(), CPU: Counter()}

    def run(self, operations: list[tuple[list[int], int, list[SimulatedMedia]] | str | int]) -> None:
        for operation in operations:
            if isinstance(operation, tuple):
                one = request(f"r{len(self.requests)}", *operation)
                self.requests[one.request_id] = one
                self.engine.add(one)
            elif operation == "clear":
                self.engine.clear()
            elif isinstance(operation, int):
                name = f"r{operation}"
                self.aborted |= {name} & set(self.engine._sequences)
                self.engine.abort(name)
            else:
                self.step()
        while self.step():
            pass

    def step(self) -> bool:
        step = self.engine.step()
        self.engine._scheduler.kv.pool.check_integrity()
        if step is not None:
            self.steps.append(step)
            self._book(step)
        return step is not None

    def _book(self, step: Step) -> None:
        for event in step.events:
            if isinstance(event, Cleared):
                for counts in self.held.values():
                    counts.clear()
            elif isinstance(event, Stored):
                self.held[event.medium].update(event.keys.tolist())
            else:
                assert isinstance(event, Removed)
                self.held[event.medium].subtract(event.keys)
        assert all(count >= 0 for counts in self.held.values() for count in counts.values())

    def check_books(self) -> None:
        ends = Counter(o.request_id for s in self.steps for o in s.outputs if o.is_finished)
        assert ends == Counter(set(self.requests) - self.aborted)
        tokens = Counter(o.request_id for s in self.steps for o in s.outputs)
        for name in ends:
            one = self.requests[name]
            assert tokens[name] == min(one.output_tokens, SPEC.max_model_len - one.prompt_tokens)
        pool = self.engine._scheduler.kv.pool
        assert {key for key, count in self.held[GPU].items() if count} == set(pool._cached)
        assert pool.usage == 0


class LongWay(Scheduler):
    """Every sequence goes the way of one to which something may happen."""

    def _schedule_quiet(self, index: int, _: Plan) -> int:
        return index


@settings(deadline=None, max_examples=60)
@given(OPERATIONS, st.booleans(), st.sampled_from([0, 6]))
def test_every_request_ends_once_with_its_tokens_and_events_tell_what_is_held(
    operations: list[tuple[list[int], int, list[SimulatedMedia]] | str | int], in_flight: bool, lower: int
) -> None:
    driven = Driven(replace(SPEC, async_scheduling=in_flight, lower_tier_blocks=lower))
    driven.run(operations)
    driven.check_books()
    if lower:
        held = {key for key, count in driven.held[CPU].items() if count}
        assert driven.engine._scheduler.kv.lower is not None
        assert held == set(driven.engine._scheduler.kv.lower._held)


@settings(deadline=None, max_examples=80)
@given(OPERATIONS, st.booleans())
def test_sequences_that_decode_within_a_block_take_a_short_way_that_equals_the_long_one(
    operations: list[tuple[list[int], int, list[SimulatedMedia]] | str | int], in_flight: bool
) -> None:
    spec = replace(SPEC, async_scheduling=in_flight)
    short, long = Driven(spec), Driven(spec, LongWay)
    short.run(operations)
    long.run(operations)
    assert repr(short.steps) == repr(long.steps)
