"""Whether the compiled code can be used here: decided once a process, and logged by name."""

from __future__ import annotations

import logging
from functools import cache

__all__ = ["can_compile"]

log = logging.getLogger("sightline.router")


@cache
def can_compile() -> bool:
    """Whether numba is there. Without it everything works, some ten to a hundred times slower."""
    try:
        import numba
    except ImportError as error:
        log.warning("router tables and block keys: plain Python, slow (numba cannot be imported: %s)", error)
        return False
    log.info("router tables and block keys: compiled (numba %s)", numba.__version__)
    return True
