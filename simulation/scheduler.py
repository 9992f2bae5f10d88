"""vLLM 0.32's v1 scheduler (`v1/core/sched/scheduler.py`, `async_scheduler.py`), first come first served.

A step first serves the running sequences in their order, then admits waiting ones; each computes as many
tokens as the step's budget leaves it (chunked prefill). An item's encoder must have run before its first
position is computed: where its budget or its cache does not allow it, the chunk ends before the item. A
running sequence that finds no block preempts the last one, which starts again from what is still cached.

Not here, because Sightline's engines do not use it: speculative decoding, priorities, LoRA, connectors,
several cache groups, watermarks.
"""

from __future__ import annotations

import bisect
from collections import deque

from simulation.blocks import BlockPool
from simulation.encoder_cache import EncoderCache
from simulation.events import Event, Removed, Stored
from simulation.lower_tier import LowerTier
from simulation.sequence import Plan, Sequence, StepOutput
from simulation.spec import EngineSpec

__all__ = ["Scheduler"]


class Scheduler:
    """Queues, blocks and encoder outputs of one engine. `events` grows until its owner takes it."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._block_size = spec.block_size
        self.pool = BlockPool(spec.num_blocks, enable_prefix_caching=spec.enable_prefix_caching)
        self.encoder = EncoderCache(spec.encoder_cache)
        self.lower = LowerTier(spec.lower_tier_blocks) if spec.lower_tier_blocks else None
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.events: list[Event] = []

    def schedule(self) -> Plan:
        """Choose what the next step computes, and book its blocks. May be empty."""
        plan = Plan(self._spec.max_num_batched_tokens, self._spec.encoder_budget)
        self._schedule_running(plan)
        if not plan.preempted:
            self._schedule_waiting(plan)
        return plan

    def _schedule_running(self, plan: Plan) -> None:
        index = 0
        running = self.running
        while index < len(running) and plan.token_budget > 0:
            index = self._schedule_quiet(index, plan)
            if index >= len(running) or plan.token_budget <= 0:
                return
            if not self._schedule_one(running[index], plan):
                return
            index += 1

    def _schedule_quiet(self, index: int, plan: Plan) -> int:
        """Running sequences from `index` on that decode within their last block, where `_schedule_one` would
        do nothing but count. Returns the first that needs it, or that the budget does not reach.
        """
        is_async = self._spec.async_scheduling
        chunks, context, budget = plan.chunks, 0, plan.token_budget
        first = index
        for sequence in self.running[index : index + budget]:
            done = sequence.num_computed
            if done + 1 >= sequence.quiet_end:
                break
            sequence.num_computed = done + 1
            if is_async:
                sequence.in_flight += 1
                sequence.placeholders += 1
            chunks.append((sequence, 1, True))
            context += done
            index += 1
        plan.token_budget -= index - first
        plan.work.decode_requests += index - first
        plan.work.decode_context += context
        return index

    def _schedule_one(self, sequence: Sequence, plan: Plan) -> bool:
        """False where it had to give way, which ends the step's scheduling."""
        wanted = self._wanted(sequence, plan)
        encodes: list[int] = []
        duplicates: list[int] = []
        if wanted and sequence.num_computed < sequence.media_end:
            wanted = self._plan_encoder(sequence, wanted, plan, encodes, duplicates)
        if not wanted:
            return True
        if not self._grow(sequence, wanted, plan):
            return False
        self._add(plan, sequence, wanted, encodes, duplicates)
        return True

    def _wanted(self, sequence: Sequence, plan: Plan) -> int:
        """Tokens that a running sequence would compute in this step; 0: none."""
        done, pending = sequence.num_computed, sequence.placeholders
        if pending and done + 2 - pending >= sequence.end_tokens:
            return 0  # its last output is under way already
        return min(sequence.num_tokens + pending - done, plan.token_budget)

    def _grow(self, sequence: Sequence, num_tokens: int, plan: Plan) -> bool:
        """Give a running sequence its blocks; False where it had to give way itself."""
        end = sequence.num_computed + num_tokens
        missing = -(-end // self._block_size) - len(sequence.blocks)
        while missing > self.pool.num_free:
            victim = self.running.pop()
            self._preempt(victim)
            plan.preempted = True
            if victim is sequence:
                return False
        if missing > 0:
            self._take(sequence, missing)
        self.cache(sequence, min(end, sequence.num_tokens))
        return True

    def _take(self, sequence: Sequence, count: int) -> None:
        blocks, evicted = self.pool.take(count)
        sequence.blocks += blocks
        if evicted:
            self.events.append(Removed(tuple(evicted)))
            if self.lower is not None:
                self.events += self.lower.put(evicted)

    def cache(self, sequence: Sequence, num_tokens: int) -> None:
        """The first `num_tokens` of the sequence are computed: its full blocks can be found."""
        first, end = sequence.num_cached_blocks, num_tokens // self._block_size
        if end <= first or not self._spec.enable_prefix_caching:
            return
        self.pool.cache(sequence.blocks[first:end], sequence.keys[first:end])
        parent = sequence.keys[first - 1] if first else None
        request = sequence.request
        self.events.append(Stored(request.request_id, first, request.keys[first:end], parent))
        sequence.num_cached_blocks = end
        sequence.next_full = (end + 1) * self._block_size

    def _preempt(self, sequence: Sequence) -> None:
        self._release(sequence)
        sequence.is_running = False
        sequence.num_computed = 0
        sequence.quiet_end = 0
        sequence.middle_output = None
        sequence.stale = sequence.in_flight
        sequence.placeholders = 0
        sequence.num_preemptions += 1
        self.waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.pool.free(sequence.blocks)
        sequence.blocks = []
        sequence.num_cached_blocks = 0
        sequence.next_full = self._block_size
        if sequence.encoder_holds:
            self._release_media(sequence)

    def _release_media(self, sequence: Sequence) -> None:
        request = sequence.request
        self.encoder.release_all(request.request_id, request.media, sequence.encoder_holds)

    def _schedule_waiting(self, plan: Plan) -> None:
        while self.waiting and plan.token_budget > 0 and len(self.running) < self._spec.max_num_seqs:
            if not self._admit(self.waiting[0], plan):
                break

    def _admit(self, sequence: Sequence, plan: Plan) -> bool:
        """Let the first waiting sequence run, as far as it fits."""
        limit = (sequence.num_tokens - 1) // self._block_size
        hits = self.pool.longest_hit(sequence.keys, limit)
        loaded = self._in_lower_tier(sequence, len(hits), limit)
        computed = (len(hits) + loaded) * self._block_size
        if sequence.cached_tokens < 0 or not sequence.num_preemptions:
            sequence.cached_tokens = computed
        wanted = min(sequence.num_tokens - computed, plan.token_budget)
        encodes: list[int] = []
        duplicates: list[int] = []
        if computed < sequence.media_end:
            sequence.num_computed = computed
            wanted = self._plan_encoder(sequence, wanted, plan, encodes, duplicates)
            sequence.num_computed = 0
            if not wanted:
                return False
        if not self._fits(sequence, hits):
            self._release_media(sequence)
            return False
        self._start(sequence, hits, loaded, wanted)
        self._add(plan, sequence, wanted, encodes, duplicates)
        plan.work.loaded_tokens += loaded * self._block_size
        return True

    def _in_lower_tier(self, sequence: Sequence, num_hits: int, limit: int) -> int:
        """Blocks after the hits that the lower tier holds."""
        return self.lower.leading(sequence.keys[num_hits:limit]) if self.lower is not None else 0

    def _fits(self, sequence: Sequence, hits: list[int]) -> bool:
        """Whether the whole of it, as long as it is now, finds blocks (`scheduler_reserve_full_isl`)."""
        missing = -(-sequence.num_tokens // self._block_size) - len(hits)
        return missing + self.pool.count_idle(hits) <= self.pool.num_free

    def _start(self, sequence: Sequence, hits: list[int], loaded: int, num_tokens: int) -> None:
        self.waiting.popleft()
        self.running.append(sequence)
        sequence.is_running = True
        self.pool.touch(hits)
        sequence.blocks = hits
        sequence.num_cached_blocks = len(hits)
        sequence.next_full = (len(hits) + 1) * self._block_size
        if loaded and self.lower is not None:
            self.lower.touch(sequence.keys[len(hits) : len(hits) + loaded])
        sequence.num_computed = (len(hits) + loaded) * self._block_size
        end = sequence.num_computed + num_tokens
        self._take(sequence, -(-end // self._block_size) - len(hits))
        self.cache(sequence, min(end, sequence.num_tokens))

    def _plan_encoder(
        self, sequence: Sequence, wanted: int, plan: Plan, encodes: list[int], duplicates: list[int]
    ) -> int:
        """Which items the chunk needs encoded, into `encodes`; how many tokens it may then compute.

        duplicates: items whose like is among `encodes`: they share its output.
        """
        media, request_id = sequence.request.media, sequence.request.request_id
        done = sequence.num_computed
        end, budget, planned = done + wanted, plan.encoder_budget, 0
        chosen: set[int] = set()
        for index in range(bisect.bisect_right(media, done, key=_end), len(media)):
            item = media[index]
            if item.offset >= end:
                break
            if item.media_id in chosen:
                duplicates.append(index)
                continue
            if self.encoder.hit(request_id, media, index, sequence.encoder_holds):
                continue
            size = item.encoder_tokens
            if size > budget or not self.encoder.make_room(size, planned):
                return max(0, item.offset - done)
            if size:
                planned += size
                budget -= size
                chosen.add(item.media_id)
                encodes.append(index)
        return wanted

    def _add(
        self, plan: Plan, sequence: Sequence, num_tokens: int, encodes: list[int], duplicates: list[int]
    ) -> None:
        plan.work.add_chunk(sequence, num_tokens)
        sequence.num_computed += num_tokens
        is_async = self._spec.async_scheduling
        if is_async:
            sequence.in_flight += num_tokens
        samples = sequence.num_computed >= sequence.num_tokens + sequence.placeholders
        plan.chunks.append((sequence, num_tokens, samples))
        plan.token_budget -= num_tokens
        if samples:
            sequence.quiet_end = min(len(sequence.blocks) * self._block_size, sequence.end_tokens)
            sequence.placeholders += is_async
        media, request_id = sequence.request.media, sequence.request.request_id
        for index in encodes:
            size = media[index].encoder_tokens
            self.encoder.allocate(request_id, media, index, sequence.encoder_holds)
            plan.encoder_budget -= size
            plan.work.add_item(size)
        for index in duplicates:
            self.encoder.hit(request_id, media, index, sequence.encoder_holds)

    def complete(self, plan: Plan) -> list[StepOutput]:
        """The step has come back."""
        outputs: list[StepOutput] = []
        is_async = self._spec.async_scheduling
        for sequence, num_tokens, samples in plan.chunks:
            output = sequence.middle_output
            if output is None or sequence.num_tokens + 1 >= sequence.end_tokens:
                if not sequence.is_gone:
                    outputs += self._complete_one(sequence, num_tokens, samples)
                continue
            sequence.num_tokens += 1
            if is_async:
                sequence.in_flight -= 1
                sequence.placeholders -= 1
                if sequence.num_computed - sequence.placeholders >= sequence.next_full:
                    self._cache_returned(sequence)
            outputs.append(output)
        return outputs

    def _complete_one(self, sequence: Sequence, num_tokens: int, samples: bool) -> tuple[StepOutput, ...]:
        """Its output, if the chunk gave any."""
        is_async, is_stale = self._spec.async_scheduling, sequence.stale > 0
        if is_async:
            sequence.in_flight -= num_tokens
        if is_stale:
            sequence.stale -= num_tokens
        if sequence.encoder_holds:
            self._release_passed(sequence)
        if not samples:
            return ()
        sequence.num_tokens += 1
        if is_async and not is_stale:
            sequence.placeholders -= 1
            self._cache_returned(sequence)
        if sequence.num_tokens >= sequence.end_tokens:
            self.remove(sequence)
        return (sequence.output(is_steady=sequence.is_running and not sequence.encoder_holds),)

    def _cache_returned(self, sequence: Sequence) -> None:
        """Asynchronous scheduling: blocks that outputs fill can be found when these have come back."""
        computed = sequence.num_computed - sequence.placeholders
        if computed >= sequence.next_full:
            self.cache(sequence, computed)

    def _release_passed(self, sequence: Sequence) -> None:
        """Outputs of items that lie wholly behind what is computed are needed no more."""
        media = sequence.request.media
        computed = sequence.num_computed - sequence.placeholders
        for index in sorted(sequence.encoder_holds):
            if media[index].end <= computed:
                self.encoder.release(sequence.request.request_id, media, index, sequence.encoder_holds)

    def remove(self, sequence: Sequence) -> None:
        """It has ended, or was aborted."""
        if sequence.is_running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.is_gone = True
        sequence.is_running = False
        sequence.middle_output = None
        if sequence.encoder_holds:
            self._release_media(sequence)
        self.pool.free(sequence.blocks)
        sequence.blocks = []


def _end(item: object) -> int:
    return item.end  # type: ignore[attr-defined, no-any-return]
