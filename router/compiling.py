"""Functions that numba compiles where it is installed, and that run as plain Python where not.

The kernels of the large tables have a form of their own (`router.kernels.compiling`), for which numba must
be there.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import numpy.typing as npt

__all__ = ["can_compile", "compiled", "keep_on_disk", "plain_of", "records"]

log = logging.getLogger("sightline.router")

_P = ParamSpec("_P")
_R = TypeVar("_R")


@cache
def can_compile() -> bool:
    """Whether numba is there: found out once a process, and logged by name. Without it everything works,
    some ten to a hundred times slower."""
    try:
        import numba
    except ImportError as error:
        log.warning("router tables and block keys: plain Python, slow (numba cannot be imported: %s)", error)
        return False
    log.info("router tables and block keys: compiled (numba %s)", numba.__version__)
    return True


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`function`, compiled at its first call; the code is kept on disk."""
    if not can_compile():
        return function
    from numba import njit

    dispatcher = njit(function)
    keep_on_disk(dispatcher)
    return cast("Callable[_P, _R]", dispatcher)


def keep_on_disk(dispatcher: Any) -> None:
    """Have numba keep what it compiles for the node's other processes, where it can."""
    try:
        dispatcher.enable_caching()
    except RuntimeError as error:  # neither the package's folder nor a user's cache can be written
        log.warning("%s is compiled by every process: %s", dispatcher.__name__, error)
        return
    # numba looks at the function's own file only, but what it calls may lie in others of its folder.
    stamp = dispatcher._cache._cache_file
    stamp._source_stamp = (stamp._source_stamp, _sources(Path(inspect.getfile(plain_of(dispatcher))).parent))


@cache
def _sources(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def plain_of(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The plain Python form of a compiled function."""
    return cast("Callable[_P, _R]", getattr(function, "py_func", function))


def records(rows: npt.NDArray[np.void], function: Callable[..., Any]) -> Any:
    """Structured rows as `function` takes them: numba reads their fields as attributes, plain Python only
    those of a record array."""
    return rows if hasattr(function, "py_func") else rows.view(np.recarray)
