"""Random requests on a small simulated engine: nothing is lost, and the short way equals the long one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from simulation import (
    CPU,
    GPU,
    Cleared,
    EngineSpec,
    Event,
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
        self.check_state()
        if step is not None:
            self.check_limits(step)
            self.steps.append(step)
            self._book(step.events)
        return step is not None

    def check_state(self) -> None:
        """Every reference to a block or an encoder output is that of a request that is here."""
        scheduler, sequences = self.engine._scheduler, self.engine._sequences
        scheduler.kv.pool.check_integrity()
        scheduler.encoder.check_integrity()
        held = Counter(block for sequence in sequences.values() for block in sequence.blocks)
        assert held == {block: refs for block, refs in enumerate(scheduler.kv.pool._refs) if refs}
        assert {id(s) for s in (*scheduler.running, *scheduler.waiting)} == set(map(id, sequences.values()))
        holders = {
            (one.request.media[index].media_id, name)
            for name, one in sequences.items()
            for index in one.encoder_holds
        }
        assert holders == {
            (item, name) for item, names in scheduler.encoder._holders.items() for name in names
        }

    def check_limits(self, step: Step) -> None:
        spec, work = self.engine.spec, step.work
        assert 0 < work.prefill_tokens + work.decode_requests <= spec.max_num_batched_tokens
        assert work.encoder_tokens <= spec.encoder_budget
        assert len(step.outputs) <= spec.max_num_seqs
        assert len({output.request_id for output in step.outputs}) == len(step.outputs)
        for output in step.outputs:
            assert 0 <= output.cached_tokens < self.requests[output.request_id].prompt_tokens
            assert output.cached_tokens % spec.block_size == 0

    def _book(self, events: Iterable[Event]) -> None:
        for event in events:
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
        self._book(
            self.engine._scheduler.kv.take_events()
        )  # an idle engine's clearing, due with its next step
        ends = Counter(o.request_id for s in self.steps for o in s.outputs if o.is_finished)
        assert ends == Counter(set(self.requests) - self.aborted)
        tokens = Counter(o.request_id for s in self.steps for o in s.outputs)
        for name in ends:
            one = self.requests[name]
            assert tokens[name] == min(one.output_tokens, SPEC.max_model_len - one.prompt_tokens)
        assert self.engine.is_idle
        pool = self.engine._scheduler.kv.pool
        assert {key for key, count in self.held[GPU].items() if count} == set(pool._cached)
        assert pool.usage == 0


class LongWay(Scheduler):
    """Every sequence goes the way of one to which something may happen."""

    def _schedule_quiet(self, index: int, _: Plan) -> int:
        return index


#: From the smallest that any of the prompts fits into.
SPECS = st.builds(
    EngineSpec,
    block_size=st.just(BLOCK),
    num_blocks=st.integers(12, 20),
    max_num_seqs=st.integers(1, 4),
    max_num_batched_tokens=st.integers(1, 13),
    max_model_len=st.just(44),
    encoder_budget_tokens=st.integers(5, 9),
    encoder_cache_tokens=st.integers(5, 9),
    async_scheduling=st.booleans(),
    lower_tier_blocks=st.sampled_from([0, 6]),
)


@settings(deadline=None, max_examples=80)
@given(OPERATIONS, SPECS)
@example([([0, 2, 2, 2, 2], 2, []), "step", "step", "step", "clear"], SPEC)
def test_every_request_ends_once_with_its_tokens_and_events_tell_what_is_held(
    operations: list[tuple[list[int], int, list[SimulatedMedia]] | str | int], spec: EngineSpec
) -> None:
    driven = Driven(spec)
    driven.run(operations)
    driven.check_books()
    if spec.lower_tier_blocks:
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
