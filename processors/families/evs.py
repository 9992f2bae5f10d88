"""Efficient video sampling in vLLM (`--video-pruning-rate`): how many of a clip's tokens are kept."""

from __future__ import annotations

__all__ = ["retained_tokens"]


def retained_tokens(tokens_per_group: int, num_groups: int, rate: float) -> int:
    """Tokens that vLLM keeps of all groups together: at least one group's.

    Source: `compute_retained_tokens_count` of vLLM 0.32. rate: 0 to 1.
    """
    return max(tokens_per_group, int(tokens_per_group * num_groups * (1 - rate)))
