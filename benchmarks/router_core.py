"""How long the router's core takes: keys of a prompt, one decision, events applied.

    python benchmarks/router_core.py [--json FILE]

No Ray and no engine; one core. Times are medians; read them with the machine that the output names.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from router import RouterConfig, RouterCore, block_keys
from sightline_types import (
    DecisionId,
    KeyedView,
    KeyScheme,
    KeySpec,
    MediaId,
    MediaSpan,
    RouteQuery,
    Tier,
    TierDelta,
    TokenView,
    WorkerContract,
    WorkerId,
    WorkerPush,
)

BLOCK = 16
SPEC = KeySpec(KeyScheme.VLLM, BLOCK)
CONTRACT = WorkerContract("vllm", "0.32.0", BLOCK, KeyScheme.VLLM, "model", 1 << 20)
ENDLESS = 1e9


def view(tokens: int, seed: int = 0) -> TokenView:
    """A prompt with a quarter of its blocks under pictures of 64 blocks each."""
    ids = np.random.default_rng(seed).integers(0, 150_000, tokens)
    length = 64 * BLOCK
    spans = tuple(MediaSpan(at, length, MediaId(at + 1)) for at in range(BLOCK, tokens - length, 4 * length))
    return TokenView(ids, spans, tokens)


def core_with(workers: int, blocks_each: int) -> RouterCore:
    core = RouterCore(
        RouterConfig(expected_ttl_s=ENDLESS), clock=time.monotonic, epoch=1, random=random.Random(0)
    )
    core.begin_warm(())
    rng = np.random.default_rng(1)
    for number in range(workers):
        held = rng.integers(1, 1 << 62, blocks_each).astype("<u8").tobytes()
        core.push(
            WorkerPush(
                WorkerId(f"w{number}"), 1, 0, (TierDelta(Tier(), held),), table=True, contract=CONTRACT
            )
        )
    return core


def decide(core: RouterCore, keyed: KeyedView, tokens: int) -> Callable[[], None]:
    """One decision, booked and released again."""
    count = iter(range(1 << 62))

    def run() -> None:
        decision_id = DecisionId(str(next(count)))
        core.decide(RouteQuery(decision_id, {SPEC: keyed}, num_tokens=tokens))
        core.cancel(decision_id)

    return run


def apply_events(core: RouterCore, batch: int) -> Callable[[], None]:
    """One message of `batch` new blocks, and the removal of the batch before."""
    worker, seq, rng = WorkerId("w0"), iter(range(1, 1 << 62)), np.random.default_rng(2)
    last = [b""]

    def run() -> None:
        new = rng.integers(1, 1 << 62, batch).astype("<u8").tobytes()
        core.push(WorkerPush(worker, 1, next(seq), (TierDelta(Tier(), new, last[0]),)))
        last[0] = new

    return run


def median_ms(run: Callable[[], None], budget_s: float = 1.5) -> float:
    run()
    times = []
    end = time.perf_counter() + budget_s
    while time.perf_counter() < end or len(times) < 5:
        began = time.perf_counter()
        run()
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def measure() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def note(what: str, value: float, unit: str) -> None:
        rows.append({"what": what, "value": round(value, 3), "unit": unit})
        print(f"{what:60} {value:10.3f} {unit}", flush=True)

    for tokens in (8_192, 131_072):
        prompt = view(tokens)
        note(f"keys of {tokens} tokens", median_ms(lambda prompt=prompt: block_keys(prompt, SPEC)), "ms")
    for workers in (8, 64):
        core = core_with(workers, 100_000 // workers)
        for tokens in (8_192, 131_072):
            keyed = block_keys(view(tokens), SPEC)
            run = decide(core, keyed, tokens)
            note(f"select + book + cancel, {tokens} tokens, {workers} workers", median_ms(run), "ms")
        per_batch = median_ms(apply_events(core, 64))
        what = f"events, 64 stored + 64 removed a message, {workers} workers"
        note(what, 128 / per_batch / 1e3, "M blocks/s")
    return rows


def machine() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    name = names[0] if names else platform.processor()
    return f"{name}, {len(names)} cores, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    print(machine())
    rows = measure()
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
