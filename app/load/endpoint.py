"""What must be known of an endpoint before it is measured: its model, and how it counts words."""

from __future__ import annotations

import msgspec

from app.load.client import Client, Exchange
from app.load.errors import EndpointError
from app.load.requests import Bodies, message
from app.load.stream import error_kind
from app.load.target import Target
from app.load.texts import Texts, TokenRate

__all__ = ["find_model", "measure_tokens"]

#: Words of the shorter one of the two prompts that are counted.
_COUNTED = 24


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def find_model(client: Client, target: Target) -> str:
    """The first model that `/models` names.

    Raises:
        EndpointError: unreachable, or it names none.
    """
    exchange = await client.get("/models")
    if exchange.failed:
        raise EndpointError(_unreachable(target, exchange))
    hint = "give the model's name with --model, and the API's root with --url (such as http://host:8000/v1)"
    if exchange.error is not None:
        kind = error_kind(exchange.status, bytes(exchange.error.body))
        raise EndpointError(f"{target.url}/models answered {kind}; {hint}")
    try:
        models = msgspec.json.decode(bytes(_body(exchange)), type=_Models).data
    except msgspec.DecodeError:
        raise EndpointError(f"{target.url}/models is not OpenAI's list of models; {hint}") from None
    if not models:
        raise EndpointError(f"{target.url}/models lists no model; it may still be loading, or {hint}")
    return models[0].id


async def measure_tokens(client: Client, bodies: Bodies, texts: Texts, target: Target) -> TokenRate:
    """How many tokens words have there, from two short prompts; one each where usage is not told.

    Raises:
        EndpointError: unreachable, or it does not answer the two.
    """
    counted = []
    short = texts.words(_COUNTED)
    for text in (short, short + b" " + texts.every_word()):
        words = text.count(b" ") + 1
        body = bodies.body(message(b"user", text))
        exchange = await client.chat(body, is_streamed=bodies.is_streamed)
        if exchange.error is not None:
            said = bytes(exchange.error.body[:500]).decode(errors="replace")
            raise EndpointError(f"{target.url} refused a prompt of {words} words: {exchange.status} {said}")
        if exchange.failed:
            raise EndpointError(_unreachable(target, exchange))
        usage = exchange.reader.usage
        if usage is None or usage.prompt_tokens is None:
            return TokenRate()
        counted.append((words, usage.prompt_tokens))
    return TokenRate.between(counted[0], counted[1])


def _body(exchange: Exchange) -> bytearray:
    return getattr(exchange.reader, "body", bytearray())


def _unreachable(target: Target, exchange: Exchange) -> str:
    if exchange.status == 200 and exchange.failed not in ("timeout", "closed"):
        return (
            f"{target.url} answers with status 200, but not as OpenAI's API does: {exchange.failed} "
            "(--no-stream asks for whole answers)"
        )
    return f"{target.url} cannot be used ({exchange.failed}): is it serving there, and is the address right?"
