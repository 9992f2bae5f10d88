"""Give the simulated engine what a recording's real engine was given, and compare step by step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash

from sightline_types import MediaId, MediaSpan
from simulation import (
    EngineSpec,
    Profile,
    Removed,
    SimulatedEngine,
    SimulatedMedia,
    SimulatedRequest,
    Step,
    Stored,
)
from simulation.wire import BlockContent, encode_batch


@dataclass(slots=True)
class Agreement:
    """What was compared, and found equal."""

    requests: int = 0
    steps: int = 0
    stored: int = 0
    removed: int = 0
    twins: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    pictures_encoded: int = 0


def engine_spec(sizes: dict[str, int], *, async_scheduling: bool) -> EngineSpec:
    return EngineSpec(
        block_size=sizes["block"],
        num_blocks=sizes["blocks"],
        max_num_seqs=sizes["seqs"],
        max_num_batched_tokens=sizes["batched"],
        max_model_len=sizes["model_len"],
        encoder_budget_tokens=sizes["budget"],
        encoder_cache_tokens=sizes["encoder"],
        async_scheduling=async_scheduling,
    )


def simulated(name: str, described: dict[str, Any], spec: EngineSpec) -> SimulatedRequest:
    """Blocks that the real engine never filled (an abort) have no hash: any key will do."""
    keys = list(described["keys"])
    total = described["prompt_tokens"] + described["output_tokens"]
    missing = total // spec.block_size - len(keys)
    keys += [xxhash.xxh3_64_intdigest(f"{name} never filled {i}".encode()) for i in range(missing)]
    media = tuple(
        SimulatedMedia(offset, length, xxhash.xxh3_64_intdigest(identifier.encode()), embeds)
        for offset, length, identifier, embeds in described["media"]
    )
    return SimulatedRequest(
        name,
        described["prompt_tokens"],
        described["output_tokens"],
        np.array(keys, dtype=np.uint64),
        media,
    )


def replay(sizes: dict[str, int], recording: dict[str, Any]) -> Agreement:
    """Every step's events as published, field for field and in their order, its outputs, scheduled tokens,
    encoded pictures and load; AssertionError at the first difference."""
    spec = engine_spec(sizes, async_scheduling=recording["form"] == "async")
    engine = SimulatedEngine(spec, Profile())
    agreement = Agreement(requests=len(recording["requests"]))
    contents = {name: _content(described) for name, described in recording["requests"].items()}
    answered: set[str] = set()
    held: Counter[int] = Counter()
    for number, (what, detail) in enumerate(recording["operations"]):
        if what == "add":
            engine.add(simulated(detail, recording["requests"][detail], spec))
        elif what == "abort":
            engine.abort(detail)
        elif what == "clear":
            assert engine.clear() == detail, number
        else:
            step = engine.step()
            assert step is not None, number
            _compare(number, step, detail, contents, spec.block_size, answered)
            _compare_load(number, engine, detail)
            _count(agreement, step, detail, held)
    assert engine.step() is None
    engine._scheduler.kv.pool.check_integrity()
    agreement.preemptions = sum(one["preemptions"] for one in recording["requests"].values())
    return agreement


def _content(described: dict[str, Any]) -> BlockContent:
    spans = tuple(
        MediaSpan(offset, length, MediaId.from_engine(identifier))
        for offset, length, identifier, _ in described["media"]
    )
    return BlockContent(np.array(described["tokens"], dtype=np.int64), spans, described["salt"])


def _compare(
    number: int,
    step: Step,
    real: dict[str, Any],
    contents: dict[str, BlockContent],
    block_size: int,
    answered: set[str],
) -> None:
    ours = msgspec.msgpack.decode(encode_batch(0.0, step.events, contents, block_size))[1]
    assert ours == real["events"], (number, ours, real["events"])
    assert step.num_scheduled_tokens == sum(real["tokens"].values()), number
    outputs = [[o.request_id, o.new_tokens, o.is_finished] for o in step.outputs]
    assert outputs == [output[:3] for output in real["outputs"]], (number, outputs, real["outputs"])
    for output, (name, *_, cached) in zip(step.outputs, real["outputs"], strict=True):
        assert output.is_first == (name not in answered), (number, name)
        if output.is_first:
            assert output.cached_tokens == cached, (number, name, output.cached_tokens, cached)
        answered.add(name)


def _compare_load(number: int, engine: SimulatedEngine, real: dict[str, Any]) -> None:
    running, waiting, usage = real["load"]
    load = engine.load()
    assert (load.num_running, load.num_waiting) == (running, waiting), (number, load, real["load"])
    assert load.kv_usage == pytest.approx(usage), number


def _count(agreement: Agreement, step: Step, real: dict[str, Any], held: Counter[int]) -> None:
    agreement.steps += 1
    for event in step.events:
        if isinstance(event, Stored):
            agreement.stored += len(event.keys)
            agreement.twins += sum(held[key] > 0 for key in event.keys.tolist())
            held.update(event.keys.tolist())
        elif isinstance(event, Removed):
            agreement.removed += len(event.keys)
            held.subtract(event.keys)
        else:
            held.clear()
    assert min(held.values(), default=0) >= 0
    agreement.cached_tokens += sum(o.cached_tokens for o in step.outputs if o.is_first)
    encoded = sum(len(items) for items in real["encoded"].values())
    assert step.work.encoder_items == encoded, (step.work, real["encoded"])
    agreement.pictures_encoded += encoded
