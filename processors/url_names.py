"""What of a URL names a file: addresses without signatures and expiry, and the hosts that rules are about."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from urllib.parse import unquote_plus, urlsplit, urlunsplit

__all__ = ["matches_host", "normalized_url"]

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
    another file. A URL that cannot be read stays whole.
    """
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


def matches_host(host: str, patterns: Iterable[str]) -> bool:
    """Whether a host fits one of the lower-case patterns; `*.a.org` is not `a.org`."""
    return _matches(host.lower().rstrip("."), patterns)


def _name(pair: str) -> str:
    return unquote_plus(pair.partition("=")[0]).lower()


def _matches(text: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)
