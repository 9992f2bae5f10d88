"""What is kept of one request."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

from app.load.client import Exchange
from app.load.requests import Ask
from app.load.stream import error_kind

__all__ = ["Sample", "sample_of"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One request, measured. Moments are seconds of the machine's monotonic clock.

    intended: when it was due (closed loop: when it was sent). tokens: moments at which content came.
    error: "" or what went wrong, as it is counted. outstanding: requests under way when it was sent,
    itself included. receipts: the answer's `x-sightline-` headers, without the prefix.
    """

    intended: float
    sent: float
    ended: float
    tokens: array[float]
    status: int
    error: str
    outstanding: int
    pictures: int = 0
    turn: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    receipts: dict[str, str] = field(default_factory=dict)
    server: str = ""
    is_resent: bool = False

    @property
    def is_good(self) -> bool:
        return not self.error

    @property
    def first(self) -> float | None:
        """When the first content came."""
        return self.tokens[0] if self.tokens else None

    @property
    def ttft_ms(self) -> float | None:
        """From the moment it was sent."""
        return (self.tokens[0] - self.sent) * 1000 if self.tokens else None

    @property
    def itl_ms(self) -> float | None:
        """Mean time between tokens after the first; by pieces of content where usage is not told."""
        count = (self.output_tokens or len(self.tokens)) - 1
        if not self.tokens or count < 1:
            return None
        return (self.tokens[-1] - self.tokens[0]) * 1000 / count

    def row(self, began: float) -> dict[str, Any]:
        """Flat, for other programs; times in ms, `sent_ms` since `began`."""
        return {
            "sent_ms": round((self.sent - began) * 1000, 3),
            "late_ms": round((self.sent - self.intended) * 1000, 3),
            "ttft_ms": _rounded(self.ttft_ms),
            "itl_ms": _rounded(self.itl_ms),
            "e2e_ms": round((self.ended - self.sent) * 1000, 3),
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens or len(self.tokens),
            "concurrent": self.outstanding,
            "pictures": self.pictures,
            "turn": self.turn,
            "status": self.status,
            "error": self.error,
            "worker": self.receipts.get("worker", ""),
        }


def sample_of(ask: Ask, exchange: Exchange, intended: float | None, outstanding: int) -> Sample:
    """intended: None where it was due when it was sent."""
    usage = exchange.reader.usage
    headers = exchange.headers
    error = exchange.failed
    if not error and exchange.error is not None:
        error = error_kind(exchange.status, bytes(exchange.error.body))
    return Sample(
        intended=exchange.sent if intended is None else intended,
        sent=exchange.sent,
        ended=exchange.ended,
        tokens=exchange.reader.times,
        status=exchange.status,
        error=error,
        outstanding=outstanding,
        pictures=ask.pictures,
        turn=ask.turn,
        bytes_out=exchange.bytes_out,
        bytes_in=exchange.bytes_in,
        prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        output_tokens=usage.completion_tokens if usage else None,
        receipts={
            name.removeprefix("x-sightline-"): value for name, value in headers.items() if name != "server"
        },
        server=headers.get("server", ""),
        is_resent=exchange.is_resent,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
