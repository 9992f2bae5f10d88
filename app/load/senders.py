"""Runs a plan in this process, or in several that begin at the same moment."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from app.interrupts import interrupts_unheard
from app.load.errors import EndpointError
from app.load.pictures import Picture
from app.load.plan import Plan
from app.load.session import Outcome, Session, Share, loop_factory

__all__ = ["send", "send_from_processes"]

#: What must happen between warm-up and measurement, such as the reading of a meter.
Begin = Callable[[], None]


def send(plan: Plan, share: Share, begin: Begin, pictures: list[Picture]) -> Outcome:
    """From this process. Ctrl-C ends it early, with what was measured."""

    async def run() -> Outcome:
        session = Session(plan, share, pictures)
        with _interruptible(session):
            await session.warm_up()
            begin()
            outcome = await session.measure()
        session.close()
        return outcome

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(run())


def send_from_processes(plan: Plan, shares: Sequence[Share], begin: Begin) -> list[Outcome]:
    """From one process a share.

    Raises:
        EndpointError: a sender ended before it had measured.
    """
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        pipes: list[Connection] = []
        outcomes: dict[int, Outcome] = {}
        for share in shares:
            ours, theirs = context.Pipe()
            process = context.Process(target=_sender, args=(plan, share, theirs), daemon=True)
            with interrupts_unheard():
                process.start()
            theirs.close()
            stack.callback(_end, process, ours)
            pipes.append(ours)
        try:
            for pipe in pipes:
                _received(pipe)
            begin()
            _tell(pipes, "go")
            return _collected(pipes, outcomes)
        except KeyboardInterrupt:
            _tell(pipes, "stop")
            return _collected(pipes, outcomes)


def _sender(plan: Plan, share: Share, pipe: Connection) -> None:
    """Where the parent is gone, nobody is told anything."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _send_and_tell(plan, share, pipe)


def _send_and_tell(plan: Plan, share: Share, pipe: Connection) -> None:
    async def run() -> Outcome:
        loop = asyncio.get_running_loop()
        session = Session(plan, share)
        told = asyncio.Event()

        def on_word() -> None:
            try:
                word = pipe.recv()
            except (EOFError, ConnectionResetError):  # the parent is gone
                word = "stop"
                loop.remove_reader(pipe.fileno())
            if word == "stop":
                session.stop()
            told.set()

        loop.add_reader(pipe.fileno(), on_word)
        await session.warm_up()
        pipe.send(None)
        await told.wait()
        outcome = await session.measure()
        loop.remove_reader(pipe.fileno())
        session.close()
        return outcome

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        outcome = runner.run(run())
    os.set_blocking(pipe.fileno(), True)  # uvloop's add_reader has changed that
    pipe.send(outcome)


def _received(pipe: Connection) -> Outcome | None:
    try:
        answer: Outcome | None = pipe.recv()
    except (EOFError, ConnectionResetError):
        raise EndpointError("a sending process ended early; its own message stands above") from None
    return answer


def _collected(pipes: Sequence[Connection], outcomes: dict[int, Outcome]) -> list[Outcome]:
    """One of each sender; those that came already are in `outcomes`."""
    for index, pipe in enumerate(pipes):
        while index not in outcomes:
            answer = _received(pipe)
            if answer is not None:  # a sender's "ready" may still stand before it
                outcomes[index] = answer
    return [outcomes[index] for index in range(len(pipes))]


def _tell(pipes: Sequence[Connection], word: str) -> None:
    for pipe in pipes:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            pipe.send(word)


def _end(process: BaseProcess, pipe: Connection) -> None:
    pipe.close()
    process.join(5)
    if process.is_alive():
        process.terminate()
        process.join()


@contextmanager
def _interruptible(session: Session) -> Iterator[None]:
    """Ctrl-C stops the session; a second one stops the program."""
    loop = asyncio.get_running_loop()

    def on_interrupt() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        session.stop()

    try:
        loop.add_signal_handler(signal.SIGINT, on_interrupt)
    except (ValueError, RuntimeError):  # not the main thread: nobody presses Ctrl-C there
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
