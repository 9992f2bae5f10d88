"""How long the router's core takes, and how it grows: keys, matching, decisions, events, memory.

    python benchmarks/router_core.py [--json FILE] [--plot FILE.png] [--small]

No Ray and no engine; one core. Times are medians of warm calls, in processor time; read them with the
machine that the output names. What each row does is in docs/router_performance.md. --small leaves out
the 16 M blocks.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import numpy.typing as npt

from router import BlockIndex, Chains, RouterConfig, RouterCore, block_keys, make_index, warm_up
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
BATCH = 64

Run = Callable[[], object]
Keys = npt.NDArray[np.uint64]


class Report:
    """The rows measured so far; each is printed as it comes."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def note(self, what: str, value: float, unit: str, aim: str = "") -> None:
        row = {"what": what, "value": round(value, 3), "unit": unit, "aim": aim}
        self.rows.append(row)
        print(f"{what:62} {value:11.3f} {unit:12} {aim}", flush=True)


def random_keys(count: int, seed: int) -> Keys:
    keys = np.random.default_rng(seed).integers(1, 1 << 63, count, dtype=np.uint64)
    keys.flags.writeable = False
    return keys


def view(tokens: int, seed: int = 0) -> TokenView:
    """A prompt with a quarter of its blocks under pictures of 64 blocks each."""
    ids = np.random.default_rng(seed).integers(0, 150_000, tokens)
    length = 64 * BLOCK
    spans = tuple(MediaSpan(at, length, MediaId(at + 1)) for at in range(BLOCK, tokens - length, 4 * length))
    return TokenView(ids, spans, tokens)


def worker(number: int) -> WorkerId:
    return WorkerId(f"w{number}")


def stored(keys: Keys, removed: Keys | None = None) -> TierDelta:
    return TierDelta(Tier(), keys.tobytes(), removed.tobytes() if removed is not None else b"")


def index_with(workers: int, blocks: int) -> BlockIndex:
    """`blocks` different blocks in all, held by one worker each."""
    index = make_index()
    for number in range(workers):
        index.replace(worker(number), [stored(random_keys(blocks // workers, number))])
    return index


def hold_stairs(index: BlockIndex, workers: int, keys: Keys) -> None:
    """Worker i of W holds the first (i + 1) / W of `keys`: every worker's run ends elsewhere."""
    for number in range(workers):
        index.apply(worker(number), stored(keys[: len(keys) * (number + 1) // workers]))


def core_with(workers: int, blocks_each: int) -> RouterCore:
    core = RouterCore(
        RouterConfig(expected_ttl_s=ENDLESS), clock=time.monotonic, epoch=1, random=random.Random(0)
    )
    core.begin_warm(())
    for number in range(workers):
        table = (stored(random_keys(blocks_each, number)),)
        core.push(WorkerPush(worker(number), 1, 0, table, table=True, contract=CONTRACT))
    return core


def decision_us(core: RouterCore, keyed: KeyedView, tokens: int, calls: int) -> tuple[float, float]:
    """Medians of one decision, booked and with its receipt, and of its release after that; once the
    memory for receipts is full, as it is for most of a router's life."""
    decided, released = [], []
    num_before = 0
    while core.stats().receipts > num_before:
        num_before = core.stats().receipts
        for number in range(100):
            core.decide(RouteQuery(DecisionId(f"b{num_before + number}"), {}, num_tokens=tokens))
            core.cancel(DecisionId(f"b{num_before + number}"))
    for number in range(calls):
        query = RouteQuery(DecisionId(f"d{number}"), {SPEC: keyed}, num_tokens=tokens)
        began = time.thread_time()
        core.decide(query)
        between = time.thread_time()
        core.cancel(query.decision_id)
        decided.append((between - began) * 1e6)
        released.append((time.thread_time() - between) * 1e6)
    return statistics.median(decided), statistics.median(released)


def turnover(apply: Callable[[int, TierDelta], object], workers: int, blocks_each: int) -> Run:
    """Full caches: a worker stores a batch of new blocks, and removes its oldest."""
    fresh = [random_keys(BATCH * 2000, 1000 + number) for number in range(min(workers, 8))]
    old = [random_keys(blocks_each, number) for number in range(min(workers, 8))]
    count = iter(range(1 << 62))

    def run() -> None:
        step = next(count)
        number, at = step % len(fresh), step // len(fresh) * BATCH
        apply(number, stored(fresh[number][at : at + BATCH], old[number][at : at + BATCH]))

    return run


def times_us(run: Run, budget_s: float = 1.0, least: int = 7, most: int = 1 << 30) -> list[float]:
    run()
    times: list[float] = []
    end = time.perf_counter() + budget_s
    while (time.perf_counter() < end or len(times) < least) and len(times) < most:
        began = time.thread_time()
        run()
        times.append((time.thread_time() - began) * 1e6)
    return times


def median_us(run: Run, budget_s: float = 1.0, most: int = 1 << 30) -> float:
    return statistics.median(times_us(run, budget_s, most=most))


def blocks_a_second(run: Run, blocks: int, calls: int) -> float:
    """Millions, of the processor's time."""
    run()
    began = time.process_time()
    for _ in range(calls):
        run()
    return blocks * calls / (time.process_time() - began) / 1e6


def measure_keys(report: Report) -> None:
    for tokens, aim in ((8_192, "<= 40"), (131_072, "<= 600")):
        prompt = view(tokens)
        us = median_us(lambda prompt=prompt: block_keys(prompt, SPEC))  # type: ignore[misc]
        report.note(f"keys of {tokens} tokens, a quarter of the blocks with media", us, "us", aim)


def measure_match(report: Report) -> None:
    for workers, blocks, aim in ((64, 512, "<= 20"), (512, 512, "<= 60"), (64, 8192, "<= 120")):
        index, keys = index_with(workers, 1_000_000), random_keys(blocks, 10_000)
        hold_stairs(index, workers, keys)
        us = median_us(lambda index=index, keys=keys: index.match(keys))  # type: ignore[misc]
        report.note(f"match {blocks} blocks, {workers} workers, 1 M resident", us, "us", aim)
        own = iter([random_keys(1_000_000 // workers, n % workers)[:blocks] for n in range(64)])
        us = median_us(lambda index=index, own=own: index.match(next(own)), 1.0, most=60)  # type: ignore[misc]
        report.note(f"match {blocks} blocks never asked before, {workers} workers", us, "us")


def measure_bookkeeping(report: Report) -> None:
    index, active = index_with(64, 1_000_000), Chains()
    for number in range(256):
        active.acquire(number % 64, random_keys(512, 20_000 + number))
    for blocks in (512, 8192):
        keys = random_keys(blocks, 30_000)

        def expect(keys: Keys = keys) -> None:
            index.expect(worker(3), keys, ENDLESS, DecisionId("d"))  # drops what it expected before

        def book(keys: Keys = keys) -> None:
            active.acquire(3, keys)
            active.release(3, keys)

        report.note(f"expect and drop {blocks} blocks", median_us(expect), "us")
        report.note(f"book and release {blocks} active blocks", median_us(book), "us")


def measure_decisions(report: Report) -> None:
    for workers in (8, 64):
        core = core_with(workers, 1_000_000 // workers)
        for tokens, aim in ((8_192, "<= 100"), (131_072, "<= 1200")):
            keyed = block_keys(view(tokens), SPEC)
            decided, released = decision_us(core, keyed, tokens, 3000 if tokens < 10_000 else 500)
            what = f"select + book, {tokens} tokens, {workers} workers"
            report.note(what, decided, "us", aim if workers == 64 else "")
            report.note("    and its release", released, "us")


def measure_long_requests(report: Report) -> None:
    """128k prompts, all different, while so many of them are under way."""
    for under_way in (1, 16, 64, 256):
        core, decided, released = core_with(64, 1_000_000 // 64), [], []
        for number in range(3 * under_way + 200):
            keyed = KeyedView(
                random_keys(8192, 50_000 + number).tobytes(), np.arange(2048, dtype="<i4").tobytes()
            )
            query = RouteQuery(DecisionId(f"d{number}"), {SPEC: keyed}, num_tokens=131_072, tie_key=number)
            began = time.thread_time()
            core.decide(query)
            between = time.thread_time()
            core.cancel(DecisionId(f"d{number - under_way}"))
            decided.append((between - began) * 1e6)
            released.append((time.thread_time() - between) * 1e6)
        what = f"select + book, 131072 tokens, {under_way} such under way"
        report.note(what, statistics.median(decided[-200:]), "us")
        report.note("    and its release", statistics.median(released[-200:]), "us")
        report.note("    while it fills", statistics.median(decided[:under_way]), "us")
        report.note("    the longest of these", max(decided[:under_way]), "us")


def measure_events(report: Report) -> None:
    workers, each = 64, 1_000_000 // 64
    index = index_with(workers, 1_000_000)
    run = turnover(lambda number, delta: index.apply(worker(number), delta), workers, each)
    rate = blocks_a_second(run, 2 * BATCH, 1500)
    report.note("events applied, 64 stored + 64 removed, full caches", rate, "M blocks/s", ">= 5")
    core, seqs = core_with(workers, each), [iter(range(1, 1 << 62)) for _ in range(workers)]

    def push(number: int, delta: TierDelta) -> None:
        core.push(WorkerPush(worker(number), 1, next(seqs[number]), (delta,)))

    run = turnover(push, workers, each)
    report.note("the same through RouterCore.push", blocks_a_second(run, 2 * BATCH, 1500), "M blocks/s")


def fill(index: BlockIndex, workers: int, each: int) -> npt.NDArray[np.float64]:
    """Seconds of processor time of every batch of stores into an index that grows."""
    seconds = []
    index.apply(worker(0), stored(random_keys(1, 1 << 30)))  # the first call of all is not a batch's time
    for number in range(workers):
        keys = random_keys(each, number)
        for at in range(0, each, BATCH):
            delta = stored(keys[at : at + BATCH])
            began = time.thread_time()
            index.apply(worker(number), delta)
            seconds.append(time.thread_time() - began)
    return np.array(seconds)


def measure_growth(workers: int, blocks: int) -> dict[str, Any]:
    """One cell of the table of growth: fill an empty index in batches, then ask it."""
    warm_up()
    gc.collect()
    before, index, each = resident_bytes(), make_index(), blocks // workers
    seconds = fill(index, workers, each)
    memory, residencies = index.stats().memory_bytes, index.stats().residencies
    gc.collect()
    resident = resident_bytes() - before
    keys = random_keys(512, 10_000)
    hold_stairs(index, workers, keys)
    run = turnover(lambda number, delta: index.apply(worker(number), delta), workers, each)
    return {
        "workers": workers,
        "blocks": blocks,
        "match_us": round(median_us(lambda: index.match(keys)), 1),
        "turnover_m_blocks_s": round(
            blocks_a_second(run, 2 * BATCH, min(1500, min(workers, 8) * (each // BATCH) - 1)), 2
        ),
        "table_bytes_a_block": round(memory / residencies, 1),
        "process_bytes_a_block": round(resident / residencies, 1),
        "batch_ms_p999": round(float(np.quantile(seconds, 0.999)) * 1e3, 3),
        "batch_ms_max": round(float(seconds.max()) * 1e3, 3),
    }


def grow(sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    table = []
    for blocks in sizes:
        for workers in (8, 64, 512):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:  # its memory is its own
                cell = alone.submit(measure_growth, workers, blocks).result()
            print("  ".join(f"{name}={value}" for name, value in cell.items()), flush=True)
            table.append(cell)
    return table


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def machine() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    name = names[0] if names else platform.processor()
    return f"{name}, {len(names)} cores, Python {platform.python_version()}, numpy {np.__version__}"


def plot(growth: list[dict[str, Any]], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    drawn = (
        ("match_us", "512 blocks matched, us"),
        ("turnover_m_blocks_s", "events, M blocks/s"),
        ("table_bytes_a_block", "table bytes a block"),
    )
    for axes, (name, title) in zip(figure.subplots(1, len(drawn)), drawn, strict=True):
        for workers in (8, 64, 512):
            cells = [cell for cell in growth if cell["workers"] == workers]
            axes.plot(
                [c["blocks"] for c in cells], [c[name] for c in cells], "o-", label=f"{workers} workers"
            )
        axes.set(xscale="log", xlabel="resident blocks", title=title)
        axes.set_ylim(bottom=0)
        axes.legend()
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--plot", type=Path, help="also draw the growth (needs matplotlib)")
    parser.add_argument("--small", action="store_true", help="without 16 M blocks")
    args = parser.parse_args()
    print(machine())
    warm_up()
    report = Report()
    measure_keys(report)
    measure_match(report)
    measure_bookkeeping(report)
    measure_decisions(report)
    measure_long_requests(report)
    measure_events(report)
    sizes = (100_000, 1_000_000) if args.small else (100_000, 1_000_000, 16_000_000)
    growth = grow(sizes)
    if args.json:
        text = json.dumps({"machine": machine(), "rows": report.rows, "growth": growth}, indent=1)
        args.json.write_text(text + "\n")
    if args.plot:
        plot(growth, args.plot)


if __name__ == "__main__":
    main()
