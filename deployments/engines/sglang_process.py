"""An `sglang.Engine` on a thread that lives as long as it does, its child processes and its sockets."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import os
import shutil
import signal
import tempfile
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self

from deployments.engines.ports import PortPair, claim_ports
from deployments.engines.reaper import start_time
from deployments.engines.sglang_args import TOPIC
from router.relay import EventSource

__all__ = ["Listening", "SglangProcess", "server_fields"]

STOP_TIMEOUT_S = 10.0


def server_fields() -> frozenset[str]:
    """The engine arguments that the installed release knows."""
    from sglang.srt.server_args import ServerArgs

    return frozenset(inspect.signature(ServerArgs).parameters)


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the publishers are told to listen.

    folder: of the sockets, where they are files: nobody outside this node, and no port that could be taken.
    ports: keeps the claim on them, where they are.
    """

    source: EventSource
    folder: str | None = None
    ports: PortPair | None = None

    @classmethod
    def at(cls, port_base: int | None) -> Listening:
        if port_base is None:
            folder = tempfile.mkdtemp(prefix="sightline-kv-")
            return cls(EventSource(f"ipc://{folder}/events", f"ipc://{folder}/replay", TOPIC), folder=folder)
        ports = claim_ports(port_base)
        source = EventSource(f"tcp://*:{ports.events}", f"tcp://*:{ports.replay}", TOPIC)
        return cls(source, ports=ports)

    def stop(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


class SglangProcess:
    """Keeps one engine.

    SGLang's children die with the thread that spawned them (PR_SET_PDEATHSIG), so the engine is built on
    one that waits until the end. Its own shutdown kills every child of this process, whoever's it is; here
    only its own are ended.
    """

    def __init__(self, args: dict[str, Any]) -> None:
        self._args = args
        self._built: Future[Any] = Future()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="sglang-engine", daemon=True)

    @classmethod
    def start(cls, args: dict[str, Any]) -> Self:
        """Build the engine. Blocks, for tens of seconds.

        Raises:
            Exception: whatever SGLang says of its arguments or its start.
        """
        process = cls(args)
        process._thread.start()
        process.engine = process._built.result()
        process._children = {pid: start_time(pid) for pid in process.engine.get_all_child_pids()}
        return process

    engine: Any
    _children: dict[int, int | None]

    def _keep(self) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)  # SGLang's constructor asks for one
        try:
            self._built.set_result(_build(self._args))
        except BaseException as error:  # handed to whoever waits for the engine
            self._built.set_exception(error)
        else:
            self._end.wait()
        loop.close()

    def setting(self, name: str) -> Any:
        """An argument as SGLang has settled it; it may differ from what it was given."""
        settled = self.engine.server_args
        if hasattr(settled, "resolved_dict"):  # from 0.5.20 on
            return settled.resolved_dict()[name]
        return getattr(settled, name)

    @property
    def kv_capacity_tokens(self) -> int:
        return int(self.engine._scheduler_init_result.scheduler_infos[0]["max_total_num_tokens"])

    @property
    def max_request_tokens(self) -> int:
        """Prompt and answer of the longest request. SGLang's own context length and cache hold two more,
        and it shortens an answer that needs them (`TpModelWorker.get_worker_info`,
        `Scheduler.init_req_max_new_tokens`)."""
        return min(int(self.engine.tokenizer_manager.context_len), self.kv_capacity_tokens) - 2

    @property
    def is_dead(self) -> bool:
        return any(start_time(pid) != began for pid, began in self._children.items())

    def stop(self) -> None:
        """End the engine's processes and let its thread go. Idempotent."""
        if self._end.is_set():
            return
        for pid, began in self._children.items():
            if began is not None and start_time(pid) == began:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        processor = self.engine.tokenizer_manager.mm_processor
        if hasattr(processor, "shutdown"):  # from 0.5.18 on
            processor.shutdown()
        self._end.set()
        self._thread.join(STOP_TIMEOUT_S)


def _build(args: dict[str, Any]) -> Any:
    import sglang

    engine = sglang.Engine(**args)
    atexit.unregister(engine.shutdown)
    # It would end this process on the spot (SIGQUIT); the replica first tells the router, and refuses.
    watchdog = engine.tokenizer_manager._subprocess_watchdog
    if watchdog is not None:
        watchdog.stop()
    return engine
