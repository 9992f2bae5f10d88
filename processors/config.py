"""Settings for the media of a request."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal, Self

import httpx
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from processors.identity import IdentityKey
from processors.url_names import host_names, matches_host

__all__ = ["DEFAULT_IGNORED_PARAMETERS", "IdentityMode", "MediaConfig"]

IdentityMode = Literal["url", "normalized_url", "bytes", "content"]
Pattern = Annotated[str, StringConstraints(strip_whitespace=True, to_lower=True, min_length=1)]

#: Query parameters that sign a URL or end its life, and never choose what it names. Those of an Azure SAS
#: are short words that others use for other things: `processors.url_names` drops them beside `sig` only.
DEFAULT_IGNORED_PARAMETERS = (
    # AWS, Google Cloud, Azure
    "x-amz-*", "awsaccesskeyid", "x-goog-*", "googleaccessid", "azure-sas",
    # CloudFront
    "policy", "key-pair-id", "hash-algorithm",
    # anybody's
    "expires", "expires_in", "expiry", "expiration", "exp", "signature", "sig", "sign", "hmac",
)  # fmt: skip


class MediaConfig(BaseModel):
    """How media are named, fetched and limited."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    identity: Literal["auto", "url", "normalized_url", "bytes", "content"] = Field(
        "auto",
        description="What makes two items one in every cache. `url`: the URL's text (http only; nothing is "
        "downloaded to know it). `normalized_url`: the same without `url_ignored_parameters`. `bytes`: the "
        "encoded file. `content`: the decoded pixels, decoded once at the ingress. `auto`: url for http(s), "
        "bytes for data: and file:. Those two never count by their spelling.",
    )
    identity_by_host: dict[Pattern, IdentityMode] = Field(
        default_factory=dict,
        description="Identity mode by host pattern (`*.s3.amazonaws.com: normalized_url`); the first that "
        "matches wins over `identity`.",
    )
    url_ignored_parameters: tuple[Pattern, ...] = Field(
        DEFAULT_IGNORED_PARAMETERS,
        description="Query parameters that `normalized_url` drops: patterns, any case; `azure-sas` means "
        "all of an Azure SAS. The default covers AWS, Google Cloud, Azure, CloudFront and common names of "
        "signatures and expiry.",
    )
    url_identity_ttl_s: int = Field(
        3600,
        gt=0,
        description="Seconds after which a URL gets a new identity, so that a picture that changed behind it "
        "is seen again. Longer: more cache hits; shorter: fresher pictures.",
    )
    url_aliases: Literal["off", "verify", "trust"] = Field(
        "verify",
        description="Whether the identity that a URL had in modes `bytes` and `content` is remembered for "
        "`url_identity_ttl_s`. `verify`: the file is still fetched for the engine (or taken from the cache) "
        "and compared; in mode `content` it is not decoded here again. `trust`: a URL seen before costs no "
        "fetch where the engine holds the picture, and a changed file goes unseen that long.",
    )
    alias_entries: int = Field(65536, ge=0, description="URLs and client uuids remembered per ingress.")
    identity_secret: str | None = Field(
        None,
        min_length=1,
        description="Text that seeds every identity. All ingress replicas of a deployment need the same.",
    )
    identity_hash: Literal["xxh3", "blake3"] = Field(
        "xxh3",
        description="xxh3 is quick; blake3, keyed with `identity_secret`, keeps tenants who do not trust "
        "each other from making two pictures one on purpose.",
    )
    repeat_files: bool = Field(
        False,
        description="Send a picture's file to an engine that was given it before, too. false: it goes there "
        "by its identity alone, and is neither sent nor decoded again, where the engine keeps pictures "
        "(vLLM's `mm_processor_cache_gb`); one that it has dropped is sent in a second try.",
    )
    bind_uuids: bool = Field(
        False,
        description="A client's uuid counts only together with the file that comes with it. false: the uuid "
        "alone names the picture, as in vLLM, and a client can leave the picture out.",
    )
    probe_budget_ms: int = Field(
        0,
        ge=0,
        description="Milliseconds that a request asks for sizes of pictures behind URLs before their files "
        "are read. 0: the file, which is read before the decision, tells the size, and its origin is asked "
        "once instead of twice.",
    )
    probe_bytes: int = Field(
        1 << 20,
        ge=4096,
        description="Bytes read of an origin at most to learn a picture's size: 4 KiB, then 64 KiB, then on. "
        "More finds sizes behind longer metadata.",
    )
    probe_timeout_ms: int = Field(
        5000, gt=0, description="Milliseconds for that reading in all, waited for or not."
    )
    fetch_timeout_s: float = Field(
        20.0, gt=0, description="Seconds for a whole download, redirects included. Afterwards: 408."
    )
    max_concurrent_fetches: int = Field(
        64, gt=0, description="Downloads at a time per ingress replica; more wait within their time limit."
    )
    max_fetches_per_host: int = Field(
        16, gt=0, description="The same per host, so that a slow one does not hold up the others."
    )
    cache_bytes: int = Field(
        256 * 1024 * 1024,
        ge=0,
        description="Bytes of downloaded files kept in memory per ingress replica. 0: none.",
    )
    cache_ttl_s: float = Field(
        60.0,
        ge=0,
        description="Seconds that a downloaded file is kept; less where the origin says so (Cache-Control).",
    )
    failure_ttl_s: float = Field(
        2.0, ge=0, description="Seconds that a failed download is not tried again. 0: always try."
    )
    max_item_bytes: int = Field(
        64 * 1024 * 1024, gt=0, description="Bytes of one encoded item. A larger one is refused with 413."
    )
    max_request_bytes: int = Field(
        256 * 1024 * 1024,
        gt=0,
        description="Bytes of all media of one request, as they travel to the engine. More: 413.",
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
    allowed_networks: tuple[str, ...] = Field(
        (),
        description="Networks (`10.1.0.0/16`) that are fetched from although their addresses are not public.",
    )
    allowed_hosts: tuple[Pattern, ...] = Field(
        (), description="Host patterns (`*.example.org`) to fetch from; empty: any. Redirects count, too."
    )
    denied_hosts: tuple[Pattern, ...] = Field(
        (), description="Host patterns never to fetch from; they win over `allowed_hosts`."
    )
    allow_http: bool = Field(True, description="Fetch over http. false: https only.")
    max_redirects: int = Field(
        3, ge=0, description="Redirects followed for one item; each is checked as the first address was."
    )
    resolver_threads: int = Field(
        32, gt=0, description="Names looked up at a time; a slow name holds one thread and no other work."
    )
    file_roots: tuple[str, ...] = Field(
        (), description="Folders whose files clients may name by file: URLs. Empty: none."
    )

    @field_validator("allowed_networks")
    @classmethod
    def _networks(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for text in given:
            ipaddress.ip_network(text)
        return given

    @model_validator(mode="after")
    def _keyed(self) -> Self:
        if self.identity_hash == "blake3" and self.identity_secret is None:
            # 64 bits without a key can be searched through at leisure.
            raise ValueError("identity_hash: blake3 needs an identity_secret")
        return self

    @property
    def identity_key(self) -> IdentityKey:
        return IdentityKey(self.identity_secret, self.identity_hash)

    def mode_for(self, url: str) -> IdentityMode:
        """The identity mode of one item."""
        scheme = url[:5].lower()
        mode = self.identity if scheme == "data:" else self._mode_of_host(url)
        if mode == "auto":
            return "bytes" if scheme in ("data:", "file:") else "url"
        if scheme in ("data:", "file:") and mode != "content":
            return "bytes"
        return mode

    def _mode_of_host(self, url: str) -> Literal["auto"] | IdentityMode:
        if not self.identity_by_host:
            return self.identity
        try:
            names = host_names(httpx.URL(url))
        except (httpx.InvalidURL, ValueError):
            return self.identity  # the fetcher refuses it
        matching = (mode for host, mode in self.identity_by_host.items() if matches_host(names, (host,)))
        return next(matching, self.identity)
