"""Stores and removes without end, in a process of its own: what memory does meanwhile, as JSON lines.

Four workers each walk through the same endless chain of keys at places of their own, so that a key has one
to four holders; each worker holds a window of its chain and pushes it forwards, as an engine with a full
cache does.
"""

from __future__ import annotations

import argparse
import gc
import json
from random import Random

import numpy as np
import numpy.typing as npt
import psutil

from router import RouterConfig, RouterCore, warm_up
from sightline_types import KeyScheme, Tier, TierDelta, WorkerContract, WorkerId, WorkerPush

BATCH = 64
SHARED_BY = 4
CONTRACT = WorkerContract("vllm", "0", 16, KeyScheme.VLLM, "m", 1 << 20)


def keys(chain: int, begin: int, end: int) -> npt.NDArray[np.uint64]:
    """Places [begin, end) of an endless chain: splitmix64, never 0 and never twice."""
    x = np.arange(begin, end, dtype=np.uint64) + np.uint64((chain + 1) << 40)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Churn:
    """A router and its workers. operations: stores and removes so far."""

    def __init__(self, workers: int, resident: int) -> None:
        warm_up()
        self.now = 0.0
        self.core = RouterCore(RouterConfig(), clock=lambda: self.now, epoch=1, random=Random(1))
        self.window = resident // workers
        self.workers = [WorkerId(f"w{n}") for n in range(workers)]
        self.begin = [n % SHARED_BY * self.window // 2 for n in range(workers)]
        self.seq = 0
        for n in range(workers):
            self._join(n)
        self.operations = resident

    def _join(self, n: int) -> None:
        held = keys(n // SHARED_BY, self.begin[n], self.begin[n] + self.window)
        delta = TierDelta(Tier(), held.astype("<u8").tobytes())
        self.core.push(WorkerPush(self.workers[n], 1, 0, (delta,), table=True, contract=CONTRACT))

    def round(self) -> None:
        """Every worker stores a batch and removes its oldest one."""
        self.seq += 1
        self.now += 0.01
        for n, worker in enumerate(self.workers):
            chain, begin = n // SHARED_BY, self.begin[n]
            stored = keys(chain, begin + self.window, begin + self.window + BATCH)
            removed = keys(chain, begin, begin + BATCH)
            delta = TierDelta(Tier(), stored.astype("<u8").tobytes(), removed.astype("<u8").tobytes())
            reply = self.core.push(WorkerPush(worker, 1, self.seq, (delta,)))
            assert reply.need == "ok"
            self.begin[n] += BATCH
        self.operations += 2 * BATCH * len(self.workers)
        if self.seq % 100 == 0:
            self.core.sweep()

    def check(self) -> None:
        """Every worker holds its window and nothing else."""
        for n, worker in enumerate(self.workers):
            held = self.core.held_keys(worker)
            expected = np.sort(keys(n // SHARED_BY, self.begin[n], self.begin[n] + self.window))
            assert np.array_equal(held, expected), worker


def memory_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=20_000_000)
    parser.add_argument("--resident", type=int, default=4_000_000)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--samples", type=int, default=20)
    options = parser.parse_args()
    before = memory_bytes()
    churn = Churn(options.workers, options.resident)
    for sample in range(1, options.samples + 1):
        while churn.operations < options.operations * sample // options.samples:
            churn.round()
        used = memory_bytes()
        print(json.dumps({"operations": churn.operations, "rss": used, "before": before}), flush=True)
    churn.check()


if __name__ == "__main__":
    main()
