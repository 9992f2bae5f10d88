"""What the router is asked of a prompt, and what separates the caches of tenants."""

from __future__ import annotations

import xxhash

from sightline_types import DecisionId, KeyedView, KeySpec, MediaReport, PreparedPrompt, RouteQuery, WorkerId

__all__ = ["cache_salt", "route_query", "tie_key"]


def route_query(
    decision_id: DecisionId,
    prompt: PreparedPrompt,
    views: dict[KeySpec, KeyedView],
    exclude: tuple[WorkerId, ...],
    output_limit: int | None,
) -> RouteQuery:
    """What the router is asked: numbers only, never tokens."""
    spans = prompt.view.spans
    first_media = min(
        [s.offset for s in spans] + ([] if prompt.is_exact else [prompt.view.exact_until]), default=None
    )
    return RouteQuery(
        decision_id=decision_id,
        views=views,
        num_tokens=prompt.num_tokens,
        media_tokens=sum(span.num_embeds for span in spans) + prompt.estimated_media_tokens,
        layout=prompt.layout,
        first_media_offset=first_media if prompt.media else None,
        tie_key=tie_key(prompt),
        exclude=exclude,
        media=tuple(MediaReport(m.modality, m.media_id, m.size, m.num_tokens) for m in prompt.media),
        reasons=prompt.reasons,
        expected_output_tokens=output_limit or 0,
        spans=tuple(span for span in spans if span.end <= prompt.view.exact_until),
    )


def tie_key(prompt: PreparedPrompt) -> int:
    """Settles equal costs: the first media item, else the tokens of the first user turn."""
    if prompt.media:
        return prompt.media[0].media_id.value
    end = prompt.first_turn_tokens or len(prompt.view)
    return xxhash.xxh3_64_intdigest(prompt.view.token_ids[:end].tobytes())


def cache_salt(salt: str | None, tenant: str | None, secret: str | None) -> str | None:
    """The salt that the engine and the keys both get; None when nothing separates the caches.

    The client's own salt is hashed with the tenant and the deployment's secret, so that no tenant can
    name another's.
    """
    if salt is None and tenant is None and not secret:
        return None
    parts = [part.encode() for part in (secret or "", tenant or "", salt or "")]
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
