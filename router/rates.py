"""How fast each worker is, learned from what its requests took; robust to outliers, and forgetful.

A request counts where nothing else waited for prefill on its worker, so that the time from its start to
its first token is its own encoding and prefill. Rates move on a logarithmic scale, by a bounded step: an
outlier moves a rate by a tenth at most, whatever its size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from router.config import RouterConfig

__all__ = ["LearnedRate", "Observation", "WorkerRates", "effective_rate"]

#: The largest step of one observation, on the logarithmic scale, before the gain.
_LARGEST_STEP = 0.5
#: A rate stays within this factor of the configured one, both ways.
_BOUND = 50.0
#: Requests that compute fewer tokens say more of the engine's step than of its speed.
MIN_TOKENS = 32
#: Rates closer than this to the pool's median count as equal, so that workers of one kind tie.
ALIKE = 0.25


@dataclass(frozen=True, slots=True)
class Observation:
    """One request's time to its first token, alone on its worker.

    elapsed_ms: on the worker's own clock. prefill_tokens: computed, not cached. attention_ms: the
    quadratic part of its prefill, by the configuration. encode_tokens: by the encoder.
    """

    elapsed_ms: float
    prefill_tokens: int
    encode_tokens: int = 0
    attention_ms: float = 0.0


@dataclass(slots=True)
class LearnedRate:
    """Milliseconds per token. start: as configured; without news the rate drifts back to it."""

    start: float
    value: float
    samples: int = 0
    at: float = 0.0

    @classmethod
    def of(cls, start: float) -> LearnedRate:
        return cls(start, start)

    def learn(self, seen: float, now: float, *, gain: float, memory_s: float) -> None:
        """seen: milliseconds per token. gain: share of the difference taken over, 0 to 1."""
        if self.start <= 0 or seen <= 0 or gain <= 0:
            return
        self.value = self.at_time(now, memory_s)
        step = math.log(seen / self.value)
        # The first few samples may go further: the configured start is a guess.
        room = _LARGEST_STEP * (4.0 if self.samples < 4 else 1.0)
        self.value *= math.exp(gain * max(-room, min(room, step)))
        self.value = max(self.start / _BOUND, min(self.start * _BOUND, self.value))
        self.samples += 1
        self.at = now

    def restart(self, start: float) -> None:
        """The configuration changed: begin from there."""
        if start != self.start:
            self.start = self.value = start
            self.samples = 0

    def at_time(self, now: float, memory_s: float) -> float:
        """The rate now; half of what was learned is forgotten each `memory_s`."""
        if not self.samples:
            return self.start
        kept = 0.5 ** (max(0.0, now - self.at) / memory_s)
        return float(self.start * (self.value / self.start) ** kept)


@dataclass(slots=True)
class WorkerRates:
    """One worker's rates."""

    prefill: LearnedRate
    encode: LearnedRate

    @classmethod
    def from_config(cls, config: RouterConfig) -> WorkerRates:
        return cls(LearnedRate.of(config.prefill_ms_per_token), LearnedRate.of(config.encode_ms_per_token))

    def configure(self, config: RouterConfig) -> None:
        """Live settings: what was learned stays where its start did."""
        self.prefill.restart(config.prefill_ms_per_token)
        self.encode.restart(config.encode_ms_per_token)

    def learn(self, seen: Observation, now: float, config: RouterConfig) -> None:
        """Without encoding a request tells the prefill rate, with it the encoder's."""
        gain, memory_s = config.rate_gain, config.rate_memory_s
        left = seen.elapsed_ms - seen.attention_ms
        if seen.encode_tokens == 0:
            if seen.prefill_tokens >= MIN_TOKENS:
                self.prefill.learn(left / seen.prefill_tokens, now, gain=gain, memory_s=memory_s)
            return
        left -= self.prefill.at_time(now, memory_s) * seen.prefill_tokens
        if seen.encode_tokens >= MIN_TOKENS:
            self.encode.learn(left / seen.encode_tokens, now, gain=gain, memory_s=memory_s)


def effective_rate(own: float, pool: list[float]) -> float:
    """A worker's rate for the cost: the pool's median where it is about that, else its own."""
    middle = median(pool) if pool else own
    return middle if abs(own - middle) <= ALIKE * middle else own
