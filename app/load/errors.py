"""What ends a run before it has measured anything.

LoadError
    UsageError: what was asked for cannot be (exit status 2)
    EndpointError: the endpoint cannot be reached, or is not OpenAI-compatible (exit status 1)
"""

from __future__ import annotations

__all__ = ["EndpointError", "LoadError", "UsageError"]


class LoadError(Exception):
    """Its text says the value, the limit and the way out."""


class UsageError(LoadError):
    pass


class EndpointError(LoadError):
    pass
