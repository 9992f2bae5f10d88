"""How a kernel is compiled: with one fixed signature, kept on disk for the node's other processes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numba
import numba.extending

from router.compiling import keep_on_disk

__all__ = ["Kernel", "compile_kernels", "helper", "intrinsic", "kernel"]

log = logging.getLogger("sightline.router")

#: A helper becomes part of every kernel that calls it.
helper: Callable[..., Any] = numba.njit(error_model="numpy", forceinline=True)

#: Emits instructions that numba has no name for.
intrinsic: Callable[..., Any] = numba.extending.intrinsic


@dataclass(frozen=True, slots=True)
class Kernel:
    """A compiled function and the signature it is compiled for; called like the function."""

    signature: str
    dispatcher: Any = field(repr=False)

    @property
    def run(self) -> Any:
        return self.dispatcher


def kernel(signature: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Make a `Kernel`; it is compiled by `compile_kernels`, before its first run."""

    def make(function: Callable[..., Any]) -> Kernel:
        return Kernel(signature, _dispatcher(function))

    return make


def _dispatcher(function: Callable[..., Any]) -> Any:
    compiled = numba.njit(error_model="numpy")(function)
    keep_on_disk(compiled)
    return compiled


def compile_kernels(name: str, kernels: Iterable[Kernel]) -> None:
    """Compile what is not compiled yet, or load it from the disk; other argument types are converted or
    refused from then on."""
    began = time.monotonic()
    missing = [k for k in kernels if not k.dispatcher.signatures]
    for one in missing:
        one.dispatcher.compile(one.signature)
        one.dispatcher.disable_compile()
    fresh = _num_fresh(missing)
    if fresh:
        log.info("compiled %d kernels of %s in %.1f s", fresh, name, time.monotonic() - began)


def _num_fresh(kernels: Sequence[Kernel]) -> int:
    """How many were not found on the disk."""
    return sum(not k.dispatcher.stats.cache_hits for k in kernels)
