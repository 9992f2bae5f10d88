"""vLLM 0.32's v1 scheduler (`v1/core/sched/scheduler.py`, `async_scheduler.py`), first come first served.

A step first serves the running sequences in their order, then admits waiting ones; each computes as many
tokens as the step's budget leaves it (chunked prefill). An item's encoder must have run before its first
position is computed: where its budget or its cache does not allow it, the chunk ends before the item. A
running sequence that finds no block preempts the last one, which starts again from what is still cached.

Not here, because Sightline's engines do not use it: speculative decoding, priorities, LoRA, connectors,
several cache groups, watermarks.
"""

from __future__ import annotations

from collections import deque

from simulation.encoder_cache import EncoderCache
from simulation.encoder_choice import EncoderChoice, book_items, choose_items
from simulation.kv_cache import KvCache
from simulation.sequence import Plan, Sequence, StepOutput
from simulation.spec import EngineSpec

__all__ = ["Scheduler"]


class Scheduler:
    """Queues, blocks and encoder outputs of one engine."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self.kv = KvCache(spec)
        self.encoder = EncoderCache(spec.encoder_cache)
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()

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
            if is_async:
                if not sequence.placeholders:
                    break  # it sat out a step: its newest token is known, and may fill its block
                sequence.in_flight += 1
                sequence.placeholders += 1
            sequence.num_computed = done + 1
            chunks.append((sequence, 1, True))
            context += done
            index += 1
        plan.token_budget -= index - first
        plan.work.decode_requests += index - first
        plan.work.decode_context += context
        return index

    def _schedule_one(self, sequence: Sequence, plan: Plan) -> bool:
        """False where it had to give way, which ends the step's scheduling."""
        choice = self._choose(sequence, sequence.num_computed, _wanted(sequence), plan)
        if not choice.num_tokens:
            return True
        if not self._grow(sequence, choice.num_tokens, plan):
            return False
        self._add(plan, sequence, choice)
        return True

    def _grow(self, sequence: Sequence, num_tokens: int, plan: Plan) -> bool:
        """Give a running sequence its blocks; False where it had to give way itself."""
        while not self.kv.grow(sequence, num_tokens):
            victim = self.running.pop()
            self._preempt(victim)
            plan.preempted = True
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.kv.free(sequence)
        self._release_media(sequence)
        sequence.is_running = False
        sequence.num_computed = 0
        sequence.quiet_end = 0
        sequence.middle_output = None
        sequence.stale = sequence.in_flight
        sequence.placeholders = 0
        sequence.num_preemptions += 1
        self.waiting.appendleft(sequence)

    def _release_media(self, sequence: Sequence) -> None:
        if sequence.encoder_holds:
            request = sequence.request
            self.encoder.release_all(request.request_id, request.media, sequence.encoder_holds)

    def _schedule_waiting(self, plan: Plan) -> None:
        while self.waiting and plan.token_budget > 0 and len(self.running) < self._spec.max_num_seqs:
            if not self._admit(self.waiting[0], plan):
                break

    def _admit(self, sequence: Sequence, plan: Plan) -> bool:
        """Let the first waiting sequence run, as far as it fits."""
        found = self.kv.find(sequence)
        computed = found.num_blocks * self._spec.block_size
        if not sequence.num_preemptions:
            sequence.cached_tokens = computed
        choice = self._choose(sequence, computed, sequence.num_tokens - computed, plan)
        if not choice.num_tokens:
            return False
        if not self.kv.would_fit(sequence, found.hits):
            self._release_media(sequence)
            return False
        self.waiting.popleft()
        self.running.append(sequence)
        sequence.is_running = True
        sequence.num_computed = computed
        self.kv.adopt(sequence, found)
        self.kv.grow(sequence, choice.num_tokens)
        self._add(plan, sequence, choice)
        plan.work.loaded_tokens += found.loaded * self._spec.block_size
        return True

    def _choose(self, sequence: Sequence, computed: int, wanted: int, plan: Plan) -> EncoderChoice:
        """How many of the `wanted` tokens after `computed` ones the budgets allow, and what is encoded."""
        num_tokens = min(wanted, plan.token_budget)
        if not num_tokens or computed >= sequence.media_end:
            return EncoderChoice(num_tokens)
        return choose_items(self.encoder, sequence, computed, num_tokens, plan.encoder_budget)

    def _add(self, plan: Plan, sequence: Sequence, choice: EncoderChoice) -> None:
        num_tokens, is_async = choice.num_tokens, self._spec.async_scheduling
        plan.work.add_chunk(sequence, num_tokens)
        sequence.num_computed += num_tokens
        if is_async:
            sequence.in_flight += num_tokens
        samples = sequence.num_computed >= sequence.num_tokens + sequence.placeholders
        plan.chunks.append((sequence, num_tokens, samples))
        plan.token_budget -= num_tokens
        if samples:
            # A block that is full when this token is computed can be found at once where the token is known,
            # and one step later where it is still awaited.
            full = len(sequence.blocks) * self._spec.block_size + is_async
            sequence.quiet_end = min(full, sequence.end_tokens)
            sequence.placeholders += is_async
        if choice.encodes:
            self._encode(plan, sequence, choice)

    def _encode(self, plan: Plan, sequence: Sequence, choice: EncoderChoice) -> None:
        book_items(self.encoder, sequence, choice)
        for index in choice.encodes:
            size = sequence.request.media[index].encoder_tokens
            plan.encoder_budget -= size
            plan.work.add_item(size)

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
            self.kv.cache(sequence, computed)

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
        self._release_media(sequence)
        self.kv.free(sequence)


def _wanted(sequence: Sequence) -> int:
    """Tokens that a running sequence has not computed yet."""
    done, pending = sequence.num_computed, sequence.placeholders
    if pending and done + 2 - pending >= sequence.end_tokens:
        return 0  # its last output is under way already
    return sequence.num_tokens + pending - done
