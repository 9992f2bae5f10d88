"""Settings for the media of a request."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["IdentityMode", "MediaConfig"]

IdentityMode = Literal["url", "bytes", "content"]


class MediaConfig(BaseModel):
    """How media are named, fetched and limited."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    identity: Literal["auto", "url", "bytes", "content"] = Field(
        "auto",
        description="What makes two items one in every cache. `url`: the URL's text (http only; nothing is "
        "fetched before routing). `bytes`: the encoded file. `content`: the decoded pixels, decoded once at "
        "the ingress. `auto`: url for http(s), bytes for data:. A data: URL never counts by its spelling.",
    )
    url_identity_ttl_s: int = Field(
        3600,
        gt=0,
        description="Seconds after which a URL gets a new identity, so that a picture that changed behind it "
        "is seen again. Longer: more cache hits; shorter: fresher pictures.",
    )
    identity_secret: str | None = Field(
        None,
        description="Text that seeds every identity. All ingress replicas of a deployment need the same.",
    )
    probe_bytes: int = Field(
        65536,
        ge=1024,
        description="Bytes asked of an origin to learn a picture's size. More finds sizes behind long "
        "metadata; fewer is quicker.",
    )
    probe_timeout_ms: int = Field(
        1000,
        gt=0,
        description="Milliseconds for that question. Afterwards the size is unknown and the request is "
        "routed by the text before the picture.",
    )
    fetch_timeout_s: float = Field(
        20.0, gt=0, description="Seconds for a whole download, redirects included. Afterwards: 408."
    )
    max_item_bytes: int = Field(
        64 * 1024 * 1024, gt=0, description="Bytes of one encoded item. A larger one is refused with 413."
    )
    max_items: int = Field(32, ge=0, description="Media items in one request. More are refused with 400.")
    max_pixels: int = Field(
        178_956_970,
        gt=0,
        description="Pixels of one picture (width x height). More are refused with 400 before decoding. "
        "Pillow itself refuses above the default.",
    )
    allow_private_addresses: bool = Field(
        False,
        description="Fetch from loopback, private, link-local and other addresses that are not public. Only "
        "where every client may see what is served there.",
    )
    allow_http: bool = Field(True, description="Fetch over http. false: https only.")
    max_redirects: int = Field(
        3, ge=0, description="Redirects followed for one item; each is checked as the first address was."
    )

    def mode_for(self, url: str) -> IdentityMode:
        """The identity mode of one item."""
        is_data = url[:5].lower() == "data:"
        if self.identity == "bytes" or self.identity == "content":
            return self.identity
        return "bytes" if is_data else "url"
