"""The address of an endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from app.load.errors import UsageError

__all__ = ["Target"]


@dataclass(frozen=True)
class Target:
    """Where requests go. path: of the API's root, such as `/v1`; headers: sent with each request."""

    host: str
    port: int
    path: str
    is_tls: bool = False
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, url: str, headers: Sequence[tuple[str, str]] = ()) -> Target:
        """From `http://host:port`, with or without `/v1`.

        Raises:
            UsageError: not an http or https URL.
        """
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
            (parts.hostname or "").encode("idna")
        except ValueError as error:
            raise UsageError(f"--url {url}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--url {url}: give an address such as http://127.0.0.1:8000")
        path = parts.path.rstrip("/").removesuffix("/chat/completions")
        is_tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if is_tls else 80), path or "/v1", is_tls, tuple(headers))

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.is_tls else ''}://{host}:{self.port}{self.path}"

    def head(self, method: str, path: str) -> bytes:
        """The request's head up to `content-length: `."""
        lines = [
            f"{method} {self.path}{path} HTTP/1.1",
            f"host: {self.host}:{self.port}",
            *(f"{name}: {value}" for name, value in self.headers),
            "content-type: application/json",
            "content-length: ",
        ]
        return "\r\n".join(lines).encode()
