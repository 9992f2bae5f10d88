"""Connections to public addresses only, however a name resolves.

The address is checked where the connection is made and the connection goes to that very address, so a
name that resolves differently the second time gains nothing. Every redirect hop connects anew.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpcore
import httpx

from processors.errors import RequestError
from processors.single_flight import SingleFlight

__all__ = [
    "AddressRefused",
    "GuardedBackend",
    "GuardedTransport",
    "Resolver",
    "SystemResolver",
    "is_public",
    "silence_urls",
]

#: From host and port to addresses, best first.
Resolver = Callable[[str, int], Awaitable[list[str]]]

_MAX_CONNECTIONS = 256
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
            f"{host} is not a public address; fetching from private, loopback and link-local addresses "
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


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Opens TCP connections for httpcore; TLS still checks the name, not the address.

    allowed_networks: these, too, though they are not public.
    """

    def __init__(
        self, *, resolver: Resolver, allow_private: bool = False, allowed_networks: Iterable[str] = ()
    ) -> None:
        self._allow_private = allow_private
        self._allowed_networks = [ipaddress.ip_network(text) for text in allowed_networks]
        self._resolver = resolver
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """
        Raises:
            AddressRefused: no address of the host may be used.
            httpcore.ConnectError, httpcore.ConnectTimeout: as its own backends.
        """
        failure: httpcore.ConnectError | httpcore.ConnectTimeout | None = None
        for address in await self._addresses(host, port):
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure or httpcore.ConnectError(f"{host} has no address")

    async def _addresses(self, host: str, port: int) -> list[str]:
        try:
            found = await self._resolver(host, port)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"{host} does not resolve") from error
        allowed = [address for address in found if self._is_allowed(address)]
        if found and not allowed:
            raise AddressRefused(host)
        return allowed

    def _is_allowed(self, address: str) -> bool:
        if self._allow_private or is_public(address):
            return True
        ip = ipaddress.ip_address(address.partition("%")[0])
        return any(ip in network for network in self._allowed_networks)

    async def connect_unix_socket(self, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:
        raise httpcore.ConnectError("unix sockets are not used here")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class GuardedTransport(httpx.AsyncHTTPTransport):
    """httpx's own transport on a pool that connects through a `GuardedBackend`."""

    def __init__(self, backend: GuardedBackend, *, ssl_context: ssl.SSLContext | None = None) -> None:
        # httpx (0.28) has no parameter for the network backend; the pool is all the state that it has.
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl_context or httpx.create_ssl_context(trust_env=True),
            max_connections=_MAX_CONNECTIONS,
            max_keepalive_connections=_MAX_CONNECTIONS // 4,
            keepalive_expiry=5.0,
            network_backend=backend,
        )


def silence_urls() -> None:
    """Keep httpx from logging whole URLs: their queries hold signatures."""
    logger = logging.getLogger("httpx")
    if _is_warning not in logger.filters:
        logger.addFilter(_is_warning)


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING
