"""The `Engine` deployment with a bad network: between engine and relay, and between relay and actor.

What goes wrong is read from a file, so that a test can change it in every replica while requests run.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import tempfile
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deployments.engine import Engine
from router import relay
from router.subscription import EventSubscription
from sightline_types import PushReply, WorkerPush

PLAN = Path(tempfile.gettempdir()) / f"sightline-faults-{os.getuid()}.json"
#: One file for each replica's process that has hidden a batch.
HIDDEN = PLAN.with_suffix(".hidden")


@dataclass(frozen=True, slots=True)
class Faults:
    """Shares (0 to 1) of messages. hides: no event batch comes, and none of them is ever replayed."""

    push_lost: float = 0.0
    reply_lost: float = 0.0
    push_doubled: float = 0.0
    push_late: float = 0.0
    batch_lost: float = 0.0
    batch_doubled: float = 0.0
    batch_garbled: float = 0.0
    hides: bool = False

    def plan(self) -> None:
        """Have it so from now on, in every replica."""
        draft = PLAN.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(self)))
        draft.replace(PLAN)


def faults() -> Faults:
    return Faults(**json.loads(PLAN.read_text())) if PLAN.exists() else Faults()


def happens(share: float) -> bool:
    return random.random() < share


class FaultySubscription(EventSubscription):
    """Loses, doubles and garbles live batches; what was hidden is in no replay either."""

    hidden_below = 0

    async def _receive(self, frames: list[bytes]) -> None:
        now, seq = faults(), int.from_bytes(frames[-2], "big")
        if now.hides:
            self.hidden_below = max(self.hidden_below, seq + 1)
            HIDDEN.mkdir(exist_ok=True)
            (HIDDEN / str(os.getpid())).touch()
        if now.hides or happens(now.batch_lost):
            return
        if happens(now.batch_garbled):
            await super()._receive([*frames[:-1], b"\xc1" + frames[-1]])
            return
        await super()._receive(frames)
        if happens(now.batch_doubled):
            await super()._receive(frames)

    async def _ask(self, seq: int) -> AsyncIterator[tuple[int, bytes]]:
        async for found in super()._ask(seq):
            if faults().hides:
                self.hidden_below = max(self.hidden_below, found[0] + 1)
            if found[0] >= self.hidden_below:
                yield found


class FaultyEngine(Engine):
    async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]
        relay.EventSubscription = FaultySubscription  # type: ignore[misc]
        self._late: list[asyncio.Task[None]] = []
        await super().__init__(*args, **kwargs)

    async def _push(self, message: WorkerPush) -> PushReply:
        now = faults()
        if happens(now.push_late):
            self._late.append(asyncio.create_task(self._push_late(message)))
        if happens(now.push_lost):
            raise ConnectionError("lost on the way")
        reply = await super()._push(message)
        if happens(now.push_doubled):
            await super()._push(message)
        if happens(now.reply_lost):
            raise ConnectionError("the answer was lost on the way")
        return reply

    async def _push_late(self, message: WorkerPush) -> None:
        """It overtakes nobody: messages after it have come long before."""
        await asyncio.sleep(random.uniform(0.05, 0.5))
        try:
            await super()._push(message)
        except Exception:  # the actor may be dead by then, like the message
            pass
