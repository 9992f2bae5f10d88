"""Connections to public addresses only, however a name resolves.

The address is checked where the connection is made and the connection goes to that very address, so a
name that resolves differently the second time gains nothing. Every redirect hop connects anew.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import httpx
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import AddrInfoType

from processors.errors import RequestError
from processors.single_flight import SingleFlight

__all__ = [
    "AddressRefused",
    "Guard",
    "GuardedResolver",
    "Resolver",
    "SystemResolver",
    "guarded_connector",
    "is_public",
]

#: From host and port to addresses, best first.
Resolver = Callable[[str, int], Awaitable[list[str]]]

_MAX_CONNECTIONS = 256
#: An idle connection is given up after so many seconds.
_KEPT_S = 5.0
#: Networks that carry an IPv4 address at their end: it counts as that address (NAT64, RFC 6052).
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
#: All IPv6 addresses that are global so far (RFC 4291). `is_global` is true of many others: site-local, and
#: forms that carry an IPv4 address, which a gateway may unpack.
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
#: IETF protocol assignments: some clouds have their metadata there.
_PROTOCOL_ASSIGNMENTS = ipaddress.ip_network("192.0.0.0/24")
#: Public by its number, and inside Azure the host that hands out certificates and secrets.
_AZURE_HOST = ipaddress.IPv4Address("168.63.129.16")


class AddressRefused(RequestError):
    """A host that resolves to no public address."""

    def __init__(self, host: str) -> None:
        message = (
            f"{host[:100]} is not a public address; fetching from private, loopback and link-local addresses "
            "is off (media.allow_private_addresses, media.allowed_networks)"
        )
        super().__init__(message, code="address_refused")


def is_public(address: str) -> bool:
    """Whether an IPv4 or IPv6 address is reachable by anyone; embedded IPv4 addresses count."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        embedded = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in _NAT64:
            embedded = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if embedded is not None:
            return is_public(str(embedded))
        return ip in _GLOBAL_UNICAST and ip.is_global
    return ip.is_global and not ip.is_multicast and ip not in _PROTOCOL_ASSIGNMENTS and ip != _AZURE_HOST


class SystemResolver:
    """The system's own name service, on threads of its own: a slow name delays nobody's other work, and
    however many ask for it, it holds one thread. To be closed."""

    def __init__(self, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="sightline-names")
        self._lookups: SingleFlight[tuple[str, int], list[str]] = SingleFlight(goes_on=True)

    async def __call__(self, host: str, port: int) -> list[str]:
        """
        Raises:
            OSError, UnicodeError: the name does not resolve.
        """
        return await self._lookups.run((host, port), lambda: self._look_up(host, port))

    async def _look_up(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, _addresses_of, host, port)

    async def aclose(self) -> None:
        await self._lookups.aclose()
        self._executor.shutdown(wait=False, cancel_futures=True)


def _addresses_of(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Guard:
    """Which addresses may be connected to.

    allowed_networks: these, too, though they are not public.
    """

    def __init__(self, *, allow_private: bool = False, allowed_networks: Iterable[str] = ()) -> None:
        self._allow_private = allow_private
        self._allowed_networks = [ipaddress.ip_network(text) for text in allowed_networks]

    def allows(self, address: str) -> bool:
        if self._allow_private or is_public(address):
            return True
        ip = ipaddress.ip_address(address.partition("%")[0])
        return any(ip in network for network in self._allowed_networks)


class GuardedResolver(AbstractResolver):
    """Of a host's addresses those that may be used. What it gives is what aiohttp connects to."""

    def __init__(self, resolver: Resolver, guard: Guard) -> None:
        self._resolver = resolver
        self._guard = guard

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """
        Raises:
            AddressRefused: no address of the host may be used.
            OSError: the name does not resolve.
        """
        try:
            found = await self._resolver(host, port)
        except UnicodeError as error:
            raise OSError(f"{host} does not resolve") from error
        allowed = [address for address in found if self._guard.allows(address)]
        if found and not allowed:
            raise AddressRefused(host)
        if not allowed:
            raise OSError(f"{host} has no address")
        return [_as_result(host, address, port) for address in allowed]

    async def close(self) -> None:
        """The resolver that was given is its maker's to close."""


def _as_result(host: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)


def guarded_connector(resolver: Resolver, guard: Guard) -> aiohttp.TCPConnector:
    """Kept connections to allowed addresses; TLS still checks the name, not the address.

    Needs a running loop.
    """

    def open_socket(info: AddrInfoType) -> socket.socket:
        # An address in a URL is not resolved: it is looked at here, as is every other once more.
        family, kind, protocol, _, where = info
        if not guard.allows(where[0]):
            raise AddressRefused(where[0])
        return socket.socket(family, kind, protocol)

    return aiohttp.TCPConnector(
        resolver=GuardedResolver(resolver, guard),
        use_dns_cache=False,
        socket_factory=open_socket,
        ssl=httpx.create_ssl_context(trust_env=True),
        limit=_MAX_CONNECTIONS,
        keepalive_timeout=_KEPT_S,
    )
