"""Functions that numba compiles where it is installed, and that run as plain Python where not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import numpy.typing as npt

__all__ = ["compiled", "plain_of", "records"]

log = logging.getLogger("sightline.router")

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _decorator() -> Callable[[Any], Any]:
    try:
        from numba import njit
    except ImportError:
        return lambda function: function

    def compile_and_keep(function: Any) -> Any:
        compiled = njit(function)
        try:
            compiled.enable_caching()
        except RuntimeError as error:  # neither the package's folder nor a user's cache can be written
            log.warning("%s is compiled by every process: %s", function.__name__, error)
        return compiled

    return compile_and_keep


_compile = _decorator()


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`function`, compiled at its first call; the code is kept on disk."""
    return cast("Callable[_P, _R]", _compile(function))


def plain_of(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The plain Python form of a compiled function."""
    return cast("Callable[_P, _R]", getattr(function, "py_func", function))


def records(rows: npt.NDArray[np.void], function: Callable[..., Any]) -> Any:
    """Structured rows as `function` takes them: numba reads their fields as attributes, plain Python only
    those of a record array."""
    return rows if hasattr(function, "py_func") else rows.view(np.recarray)
