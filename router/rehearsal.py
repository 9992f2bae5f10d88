"""A rehearsal of everything that is compiled at its first use, on a router that is thrown away."""

from __future__ import annotations

import time
from random import Random

import numpy as np

from router.config import RouterConfig
from router.core import RouterCore
from router.keys import block_keys
from router.structures import warm_up
from sightline_types import (
    DecisionId,
    KeyScheme,
    KeySpec,
    LifecycleEvent,
    LifecycleKind,
    RouteQuery,
    Tier,
    TierDelta,
    TokenView,
    WorkerContract,
    WorkerId,
    WorkerPush,
)

__all__ = ["rehearse"]

_BLOCK = 16
_SPEC = KeySpec(KeyScheme.VLLM, _BLOCK)
_CONTRACT = WorkerContract("rehearsal", "0", _BLOCK, KeyScheme.VLLM, "rehearsal", 1024)


def rehearse(config: RouterConfig) -> None:
    """Compile the router's code, or load it from the disk, and see one request through.

    The first process on a node takes some 30 s; later ones a second or two.
    """
    warm_up()
    core = RouterCore(config, clock=time.monotonic, epoch=0, random=Random(0))
    view = block_keys(TokenView(np.arange(4 * _BLOCK, dtype=np.int64), (), 4 * _BLOCK), _SPEC)
    table = (TierDelta(Tier(), view.keys[:16]),)
    workers = [WorkerId("rehearsal", rank) for rank in range(2)]
    for worker in workers:
        core.push(WorkerPush(worker, 1, 0, table, table=True, contract=_CONTRACT))
    for name in ("first", "second"):
        decision = core.decide(RouteQuery(DecisionId(name), {_SPEC: view}, num_tokens=4 * _BLOCK))
        ended = LifecycleEvent(LifecycleKind.END, decision.decision_id)
        core.push(WorkerPush(decision.worker, 1, 1, table, lifecycle=(ended,)))
    core.sweep()
