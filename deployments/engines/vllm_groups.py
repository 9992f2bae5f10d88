"""A vLLM engine's KV cache groups, as a contract names them. Pure; vLLM is not imported."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from router.usable import PLAIN_GROUPS
from sightline_types import KvGroup

__all__ = ["kv_groups", "unit_size"]


def kv_groups(metadata: Sequence[Mapping[str, Any]], *, attention_chunk: int = 0) -> tuple[KvGroup, ...]:
    """From `EngineCore.get_kv_cache_group_metadata` of vLLM 0.32; full attention first.

    attention_chunk: tokens of an attention chunk (Llama-4), which the metadata leaves out.
    """
    groups = [
        KvGroup(
            str(group["kind"]),
            int(group["block_size"]),
            _window(group, attention_chunk),
            int(group["group_idx"]),
        )
        for group in metadata
    ]
    return tuple(sorted(groups, key=lambda group: group.kind != PLAIN_GROUPS[0].kind))


def _window(group: Mapping[str, Any], attention_chunk: int) -> int:
    if group["kind"] == "chunked_local_attention":
        return attention_chunk
    return int(group.get("sliding_window") or 0)


def unit_size(groups: Sequence[KvGroup]) -> int:
    """Tokens that one key stands for: vLLM hashes at the greatest common divisor of the groups' sizes."""
    return math.gcd(*(group.block_size for group in groups))
