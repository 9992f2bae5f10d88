"""What of a URL names a file: addresses without signatures and expiry, and the hosts that rules are about."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from functools import lru_cache
from urllib.parse import unquote_plus, urlsplit, urlunsplit

import httpx

__all__ = ["MAX_URL_CHARS", "host_names", "matches_host", "normalized_url"]

MAX_URL_CHARS = 8192

#: An Azure shared access signature (service, account, user delegation), told by its `sig`.
_AZURE_SAS = frozenset(
    "sv ss srt sp se st spr sig sr si sip skoid sktid skt ske sks skv sdd ses saoid suoid scid".split()
)
_DEFAULT_PORTS = {"http": 80, "https": 443}


def normalized_url(url: str, ignored: Iterable[str]) -> str:
    """The URL without the query parameters that `ignored` names, its fragment and default port.

    ignored: lower-case patterns; `azure-sas` stands for the parameters of an Azure SAS, dropped only
        where there is a `sig`, because they are short words with other uses.
    What is left stays as it is written, in its order: the user, too, since a server may give another one
    another file. A URL that cannot be read, or is longer than one that is fetched, stays whole.
    """
    if len(url) > MAX_URL_CHARS:
        return url
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return url
    if not host:
        return url
    patterns = tuple(ignored)
    pairs = [(_name(pair), pair) for pair in parts.query.split("&") if pair]
    dropped = (
        _AZURE_SAS if "azure-sas" in patterns and any(name == "sig" for name, _ in pairs) else frozenset()
    )
    kept = [pair for name, pair in pairs if name not in dropped and not _matches(name, patterns)]
    user, at, _ = parts.netloc.rpartition("@")
    netloc = user + at + (f"[{host}]" if ":" in host else host)
    if port is not None and port != _DEFAULT_PORTS.get(parts.scheme.lower()):
        netloc += f":{port}"
    return urlunsplit((parts.scheme.lower(), netloc, parts.path or "/", "&".join(kept), ""))


def host_names(url: httpx.URL) -> tuple[str, ...]:
    """A URL's host as patterns may name it: in its letters, and as the name service has it (`xn--...`)."""
    names = (url.host, url.raw_host.decode("ascii"))
    return tuple(dict.fromkeys(name.lower().rstrip(".") for name in names))


def matches_host(names: Iterable[str], patterns: Iterable[str]) -> bool:
    """Whether a host (`host_names`) fits one of the lower-case patterns; `*.a.org` is not `a.org`."""
    wanted = tuple(patterns)
    return any(_matches(name, wanted) for name in names)


def _name(pair: str) -> str:
    return unquote_plus(pair.partition("=")[0]).lower()


def _matches(text: str, patterns: tuple[str, ...]) -> bool:
    return bool(patterns) and _any_of(patterns).match(text) is not None


@lru_cache(maxsize=256)
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """One expression for all: a query has thousands of parameters if its writer wants it so."""
    return re.compile("|".join(translate(pattern) for pattern in patterns))
