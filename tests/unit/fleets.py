"""Tiny fleets for tests: few workers, short prompts, quick engines."""

from __future__ import annotations

from simulation.fleet import FleetRun, simulate
from simulation.profile import Profile
from simulation.prompts import Picture, Session, Text, Turn, make_id
from simulation.scenario import Scenario
from simulation.spec import EngineSpec

BLOCK = 16
PROFILE = Profile(
    prefill_base_ms=1.0,
    prefill_ms_per_token=0.05,
    decode_base_ms=2.0,
    decode_ms_per_request=0.1,
    encode_ms_per_token=0.05,
)
SYSTEM = Text(make_id("system"), 40)


def scenario(**changes) -> Scenario:
    plain = {
        "num_workers": 3,
        "engine": EngineSpec(block_size=BLOCK, num_blocks=400, max_num_batched_tokens=512),
        "profile": PROFILE,
        "sample_ms": 50.0,
    }
    return Scenario.model_validate({**plain, **changes})


def picture(name: object, tokens: int = 60) -> Picture:
    return Picture(make_id("picture", name), tokens, "640x480")


def turn(
    name: object, *pictures: object, question: int = 50, output: int = 12, think_ms: float = 0.0
) -> Turn:
    parts = (SYSTEM, *(picture(each) for each in pictures), Text(make_id("question", name), question))
    return Turn(parts, output, make_id("answer", name), think_ms)


def single(start_ms: float, name: object, *pictures: object, **lengths) -> Session:
    return Session(start_ms, (turn(name, *pictures, **lengths),))


def groups(count: int, gap_ms: float, num_pictures: int = 6) -> list[Session]:
    """`count` requests, `gap_ms` apart, about one picture each of `num_pictures`."""
    return [single(n * gap_ms, n, make_id("shown", n) % num_pictures) for n in range(count)]


def run(sessions, policy: str = "kv", **changes) -> FleetRun:
    return simulate(sessions, scenario(**changes), policy)
