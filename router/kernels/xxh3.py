"""xxh3_64 with seed 0 over whole 64-bit words: bit for bit what the xxhash package gives for their
little-endian bytes.

Source of the formula: the xxHash specification, version 0.8 (XXH3, 64 bits), by length class. Inputs here
are at least two words, so the classes below nine bytes are left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from router.kernels.compiling import helper, intrinsic

__all__ = ["digest"]

#: The specification's default secret, 192 bytes as words.
_SECRET_BYTES = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


def _secret(offset: int, num_words: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.frombuffer(_SECRET_BYTES, dtype="<u8", count=num_words, offset=offset).astype(np.uint64)


SECRET = _secret(0, 24)
SECRET_3 = _secret(3, 20)
SECRET_11 = _secret(11, 8)
SECRET_119 = _secret(119, 2)
SECRET_121 = _secret(121, 8)

PRIME32_1 = np.uint64(0x9E3779B1)
PRIME64_1 = np.uint64(0x9E3779B185EBCA87)
AVALANCHE = np.uint64(0x165667919E3779F9)
#: The accumulators' start: primes of both widths.
ACCUMULATORS = np.array(
    [
        0xC2B2AE3D,
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x85EBCA77,
        0x27D4EB2F165667C5,
        0x9E3779B1,
    ],
    dtype=np.uint64,
)
LOW_HALF = np.uint64(0xFFFFFFFF)
S32, S37, S47 = np.uint64(32), np.uint64(37), np.uint64(47)
WORD_BYTES = np.uint64(8)

STRIPE = 8  # words
STRIPES_A_BLOCK = 16


@intrinsic
def fold(typing_context: Any, a: Any, b: Any) -> Any:
    """The low half of the 128-bit product, xor its high half."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide, word = ir.IntType(128), ir.IntType(64)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        high = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), word)
        return builder.xor(builder.trunc(product, word), high)

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def swap_bytes(typing_context: Any, word: Any) -> Any:
    """The word with its bytes in reverse order."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bswap(args[0])

    return types.uint64(types.uint64), generate


@helper
def avalanche(word):  # type: ignore[no-untyped-def]
    word ^= word >> S37
    word *= AVALANCHE
    return word ^ (word >> S32)


@helper
def mix(words, at, secret, offset):  # type: ignore[no-untyped-def]
    return fold(words[at] ^ secret[offset], words[at + 1] ^ secret[offset + 1])


@helper
def digest_two(words):  # type: ignore[no-untyped-def]
    low = words[0] ^ (SECRET[3] ^ SECRET[4])
    high = words[1] ^ (SECRET[5] ^ SECRET[6])
    return avalanche(np.uint64(16) + swap_bytes(low) + high + fold(low, high))


@helper
def digest_short(words, count):  # type: ignore[no-untyped-def]
    """17 to 128 bytes: pairs from both ends."""
    total = np.uint64(count) * WORD_BYTES * PRIME64_1
    for pair in range((count + 3) // 4):
        total += mix(words, 2 * pair, SECRET, 4 * pair)
        total += mix(words, count - 2 - 2 * pair, SECRET, 4 * pair + 2)
    return avalanche(total)


@helper
def digest_middle(words, count):  # type: ignore[no-untyped-def]
    """129 to 240 bytes."""
    total = np.uint64(count) * WORD_BYTES * PRIME64_1
    for pair in range(8):
        total += mix(words, 2 * pair, SECRET, 2 * pair)
    end = mix(words, count - 2, SECRET_119, 0)
    for pair in range(8, count // 2):
        end += mix(words, 2 * pair, SECRET_3, 2 * (pair - 8))
    return avalanche(avalanche(total) + end)


@helper
def accumulate(totals, words, at, secret, offset):  # type: ignore[no-untyped-def]
    for lane in range(STRIPE):
        word = words[at + lane]
        keyed = word ^ secret[offset + lane]
        totals[lane ^ 1] += word
        totals[lane] += (keyed & LOW_HALF) * (keyed >> S32)


@helper
def digest_long(words, count):  # type: ignore[no-untyped-def]
    """More than 240 bytes: stripes of 64, scrambled after every 1,024."""
    totals = ACCUMULATORS.copy()
    for stripe in range((count - 1) // STRIPE):
        accumulate(totals, words, STRIPE * stripe, SECRET, stripe % STRIPES_A_BLOCK)
        if stripe % STRIPES_A_BLOCK == STRIPES_A_BLOCK - 1:
            for lane in range(STRIPE):
                word = totals[lane]
                totals[lane] = ((word ^ (word >> S47)) ^ SECRET[STRIPES_A_BLOCK + lane]) * PRIME32_1
    accumulate(totals, words, count - STRIPE, SECRET_121, 0)
    total = np.uint64(count) * WORD_BYTES * PRIME64_1
    for pair in range(4):
        total += mix(totals, 2 * pair, SECRET_11, 2 * pair)
    return avalanche(total)


@helper
def digest(words, count):  # type: ignore[no-untyped-def]
    """xxh3_64 of the first `count` >= 2 words."""
    if count == 2:
        return digest_two(words)
    if count <= 16:
        return digest_short(words, count)
    if count <= 30:
        return digest_middle(words, count)
    return digest_long(words, count)
