"""How fast each worker is, learned from what its requests took; robust to outliers, and forgetful.

A request counts where nothing else waited for prefill on its worker, so that the time from its start to its
first token is its own:

    time = fixed + prefill rate * computed tokens + encode rate * encoder tokens

fixed is the engine's step, the host, and whatever keeps a starved machine from its work; without it short
prompts would make a worker look many times slower than it is, and by chance one twice as slow as another.
The three are fitted together, and how sure a rate is comes with it, so that only a difference that cannot be
chance sets workers apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from statistics import median

import numpy as np

from router.config import RouterConfig
from router.regression import Regression

__all__ = ["Observation", "Rate", "WorkerRates", "effective_rate"]

#: The fixed part beforehand: between nothing and the prefill of about twice so many tokens.
_FIXED_TOKENS = 200.0
#: Times are compared as if each had the prefill of so many tokens more.
_FLOOR_TOKENS = 500.0
#: Rates closer than this to the pool's median count as equal, so that workers of one kind tie; and those
#: closer than so many standard errors.
_ALIKE, _SURE = 0.25, 2.0


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


@dataclass(frozen=True, slots=True)
class Rate:
    """Milliseconds per token, and the standard error of that: infinite where nothing was measured, and the
    larger the longer ago it was."""

    value: float
    error: float = 0.0


class WorkerRates:
    """One worker's rates. prefill_samples, encode_samples: measurements with tokens of that sort."""

    def __init__(self, prefill_start: float, encode_start: float) -> None:
        self._begin((prefill_start, encode_start))

    def _begin(self, starts: tuple[float, float]) -> None:
        self._starts = starts
        self._regression = Regression()
        self._at = 0.0
        self.prefill_samples = self.encode_samples = 0

    @classmethod
    def from_config(cls, config: RouterConfig) -> WorkerRates:
        return cls(config.prefill_ms_per_token, config.encode_ms_per_token)

    def configure(self, config: RouterConfig) -> None:
        """Live settings: what was learned stays where the starts do."""
        starts = config.prefill_ms_per_token, config.encode_ms_per_token
        if starts != self._starts:
            self._begin(starts)

    def learn(self, seen: Observation, now: float, config: RouterConfig) -> None:
        """Take in what one request took."""
        left = seen.elapsed_ms - seen.attention_ms
        if left <= 0 or config.rate_gain <= 0:
            return
        prefill, encode = self._starts
        features = np.array(
            [prefill * _FIXED_TOKENS, prefill * seen.prefill_tokens, encode * seen.encode_tokens]
        )
        self._regression.drift(self._kept(now, config.rate_memory_s))
        self._regression.add(features, left, floor_ms=prefill * _FLOOR_TOKENS, gain=config.rate_gain)
        self._at = now
        self.prefill_samples += seen.prefill_tokens > 0
        self.encode_samples += seen.encode_tokens > 0

    def prefill(self, now: float, memory_s: float) -> Rate:
        """The rate now; half of what was learned is forgotten each `memory_s`."""
        return self._rate(1, now, memory_s) if self.prefill_samples else Rate(self._starts[0], inf)

    def encode(self, now: float, memory_s: float) -> Rate:
        return self._rate(2, now, memory_s) if self.encode_samples else Rate(self._starts[1], inf)

    @property
    def fixed_ms(self) -> float:
        """What a request takes besides, as last measured."""
        return float(self._regression.shares[0]) * self._starts[0] * _FIXED_TOKENS

    def _rate(self, place: int, now: float, memory_s: float) -> Rate:
        start, share = self._starts[place - 1], float(self._regression.shares[place])
        kept = self._kept(now, memory_s)
        share = 1.0 + kept * (share - 1.0)
        return Rate(start * share, start * self._regression.error(place) / kept if kept else inf)

    def _kept(self, now: float, memory_s: float) -> float:
        return float(0.5 ** (max(0.0, now - self._at) / memory_s)) if self._regression.num_seen else 1.0


def effective_rate(own: Rate, pool: list[Rate]) -> float:
    """A worker's rate for the cost: the pool's median where it is about that, or may be, else its own.

    Of workers that were never measured nothing is known but what the others are: were they taken as
    configured, those that turned out faster would get everything, and these would never be measured.
    """
    measured = [rate.value for rate in pool if rate.error < inf]
    if not measured:
        return own.value
    middle = median(measured)
    is_alike = abs(own.value - middle) <= max(_ALIKE * middle, _SURE * own.error)
    return middle if is_alike else own.value
