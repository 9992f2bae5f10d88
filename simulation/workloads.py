"""The built-in workloads: who asks what. Each is made anew from a seed, the same for the same seed.

How many tokens a picture takes is passed in (`PictureTokens`): the application asks the family's own
layout, so that a workload names sizes in pixels and nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import MappingProxyType

from simulation.arrivals import closed_loop, poisson
from simulation.errors import WorkloadError
from simulation.picture_tokens import PictureTokens
from simulation.prompts import Part, Picture, Session, Text, Turn, make_id
from simulation.traces import read_trace

__all__ = ["WORKLOADS", "Load", "Workload", "find_workload"]


@dataclass(frozen=True, slots=True)
class Load:
    """How much of it. rate_per_s: requests a second, on average (of an open loop); None: the trace's own.

    num_requests: in all. think_s: mean pause of a user between two turns (of a closed loop).
    sees_urls: pictures are told apart by their address as it is (identity mode `url`), so that a new
    signature makes a new picture. trace: the file that a trace is read from. picture_share: of the full
    blocks of a Mooncake trace, taken to be pictures.
    """

    rate_per_s: float | None
    num_requests: int
    think_s: float
    seed: int
    picture_tokens: PictureTokens
    sees_urls: bool = False
    trace: Path | None = None
    picture_share: float = 0.0

    @property
    def rate(self) -> float:
        if self.rate_per_s is None:
            raise WorkloadError("this workload has no rate of its own: give --rate")
        return self.rate_per_s


@dataclass(frozen=True, slots=True)
class Workload:
    """alias, name: as on the command line. about: one line for people.

    rate_per_s, num_requests, think_s, picture_share: unless something else is asked for.
    """

    alias: str
    name: str
    about: str
    make: Callable[[Load], tuple[Session, ...]] = field(repr=False)
    rate_per_s: float | None = 40.0
    num_requests: int = 3000
    think_s: float = 0.0
    picture_share: float = 0.0
    needs_trace: bool = False
    has_rate: bool = True


def _one_turn(*parts: Text | Picture, output_tokens: int, name: object) -> tuple[Turn]:
    return (Turn(parts, output_tokens, make_id("answer", name)),)


def _picture(load: Load, name: object, width: int, height: int) -> Picture:
    size = f"{width}x{height}"
    return Picture(make_id("picture", load.seed, name), load.picture_tokens(width, height), size)


# W1, W3: groups of prompts about the same pictures

_GROUP_PROMPTS = 5
_GROUPS_AT_ONCE = 60
_GROUP_PICTURES = 3
_SYSTEM_TOKENS = 100
_QUESTION_TOKENS = 1200


def _groups(load: Load) -> tuple[Session, ...]:
    return _grouped(load, _GROUPS_AT_ONCE)


def _signed_urls(load: Load) -> tuple[Session, ...]:
    return _grouped(load, _GROUPS_AT_ONCE, signed=load.sees_urls)


def _scattered_groups(load: Load) -> tuple[Session, ...]:
    return _grouped(load, load.num_requests)


def _grouped(load: Load, groups_at_once: int, *, signed: bool = False) -> tuple[Session, ...]:
    """A group's later prompts come while the next `groups_at_once` groups begin, in random order."""
    random = Random(load.seed)
    order = _order(load.num_requests, groups_at_once, random)
    system = Text(make_id("system", load.seed), _SYSTEM_TOKENS)

    def prompt(number: int, group: int) -> tuple[Turn]:
        names = [(group, place, number) if signed else (group, place) for place in range(_GROUP_PICTURES)]
        pictures = [_picture(load, name, 1280, 720) for name in names]
        question = Text(make_id("question", load.seed, number), _QUESTION_TOKENS)
        return _one_turn(system, *pictures, question, output_tokens=300, name=(load.seed, number))

    return poisson((prompt(n, group) for n, group in enumerate(order)), load.rate, random)


def _order(num_requests: int, groups_at_once: int, random: Random) -> list[int]:
    """The group of each request."""
    placed = []
    for number in range(num_requests):
        group, place = divmod(number, _GROUP_PROMPTS)
        placed.append((group + (random.random() * groups_at_once if place else 0.0), group))
    return [group for _, group in sorted(placed)]


# W2: screens that slide by

_WINDOW = 5
_TURNS = 8


def _sliding_window(load: Load) -> tuple[Session, ...]:
    """Each turn shows the user's last five screens, so that only the text before them stays a prefix."""
    random = Random(load.seed)
    users = [_slides(load, user) for user in range(max(1, load.num_requests // _TURNS))]
    return closed_loop(users, load.think_s, random, ramp_s=10.0)


def _slides(load: Load, user: int) -> tuple[Turn, ...]:
    history = Text(make_id("history", load.seed, user), 8000)
    screens = [_picture(load, (user, place), 2400, 1080) for place in range(_WINDOW + _TURNS - 1)]

    def turn(place: int) -> Turn:
        question = Text(make_id("question", load.seed, user, place), 60)
        parts: tuple[Part, ...] = (history, *screens[place : place + _WINDOW], question)
        return Turn(parts, 150, make_id("answer", load.seed, user, place))

    return tuple(turn(place) for place in range(_TURNS))


# W4: one prefix for everybody


def _hot_prefix(load: Load) -> tuple[Session, ...]:
    """A long system prompt that all share, and short questions that nobody asks twice."""
    random = Random(load.seed)
    system = Text(make_id("system", load.seed), 4000)

    def prompt(number: int) -> tuple[Turn]:
        question = Text(make_id("question", load.seed, number), random.randint(50, 800))
        return _one_turn(system, question, output_tokens=random.randint(50, 400), name=(load.seed, number))

    return poisson((prompt(n) for n in range(load.num_requests)), load.rate, random)


# W5, trace: as recorded


def _replayed(load: Load) -> tuple[Session, ...]:
    """At the trace's own times, or as much faster as the rate asks for."""
    if load.trace is None:
        raise WorkloadError("this workload replays a recorded trace: give --trace FILE (docs/traces.md)")
    trace = read_trace(load.trace, load.picture_tokens, picture_share=load.picture_share)
    sessions = trace.replayed(limit=load.num_requests)
    if load.rate_per_s is None or len(sessions) < 2:
        return sessions
    num_requests = sum(len(session.turns) for session in sessions)
    own_rate = num_requests * 1e3 / max(sessions[-1].start_ms, 1e-3)
    return trace.replayed(speed=load.rate_per_s / own_rate, limit=load.num_requests)


# W6: pictures of all sizes

_SIZES = (
    (64, 64), (224, 224), (336, 336), (640, 480), (1024, 768), (1280, 720), (1920, 1080), (2560, 1440),
    (3840, 2160),
)  # fmt: skip
_CATALOGUE = 600


def _mixed_sizes(load: Load) -> tuple[Session, ...]:
    """One to four pictures of a catalogue, the popular ones far more often (Zipf's law)."""
    random = Random(load.seed)
    catalogue = [_picture(load, ("item", n), *random.choice(_SIZES)) for n in range(_CATALOGUE)]
    weights = [1.0 / (place + 1) for place in range(_CATALOGUE)]
    system = Text(make_id("system", load.seed), _SYSTEM_TOKENS)

    def prompt(number: int) -> tuple[Turn]:
        shown = random.choices(catalogue, weights, k=random.choice((1, 1, 1, 2, 2, 3, 4)))
        question = Text(make_id("question", load.seed, number), random.randint(20, 800))
        return _one_turn(
            system, *shown, question, output_tokens=random.randint(30, 400), name=(load.seed, number)
        )

    return poisson((prompt(n) for n in range(load.num_requests)), load.rate, random)


WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        workload.alias: workload
        for workload in (
            Workload(
                "W1", "groups",
                "600 groups x 5 prompts, 60 groups at a time; a group shares three 1280x720 pictures; "
                "1.3k tokens of text, 300 out",
                _groups,
            ),
            Workload(
                "W1c", "scattered_groups",
                "W1 with each group's prompts anywhere in the run: it begins cold, with new pictures only",
                _scattered_groups,
            ),
            Workload(
                "W2", "sliding_window",
                "30 users x 8 turns, closed loop: 8k tokens of text, then the last five 2400x1080 screens",
                _sliding_window, num_requests=240, think_s=2.0, has_rate=False,
            ),
            Workload(
                "W3", "signed_urls",
                "W1 with a fresh signature in each picture's address; --identity url shows what that costs",
                _signed_urls,
            ),
            Workload(
                "W4", "hot_prefix",
                "one 4k system prompt for everybody, and a short question that nobody asks twice",
                _hot_prefix, rate_per_s=60.0,
            ),
            Workload(
                "W5", "mooncake_media",
                "a Mooncake trace (--trace FILE), 30 % of its blocks taken to be pictures; 3,000 requests",
                _replayed, rate_per_s=12.0, picture_share=0.3, needs_trace=True,
            ),
            Workload(
                "W6", "mixed_sizes",
                "one to four pictures of a catalogue of 600, 64x64 to 3840x2160, popular ones more often",
                _mixed_sizes,
            ),
            Workload(
                "T", "trace",
                "a trace of your own, at its own times (--trace FILE; sightline trace makes one of a log)",
                _replayed, rate_per_s=None, num_requests=1_000_000, needs_trace=True,
            ),
        )
    }
)  # fmt: skip


def find_workload(name: str) -> Workload:
    """By alias or name, in any case.

    Raises:
        WorkloadError: there is none of that name; says which there are.
    """
    for workload in WORKLOADS.values():
        if name.lower() in (workload.alias.lower(), workload.name):
            return workload
    known = ", ".join(f"{workload.alias} {workload.name}" for workload in WORKLOADS.values())
    raise WorkloadError(f"no workload {name[:40]!r}: there are {known}")
