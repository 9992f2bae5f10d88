"""The tokenizer and the chat template of the tiny models: byte-level BPE with a fixed vocabulary.

Every merge appends one letter to a token that begins with a space, so the tokens form a trie of
words, and text made of whole words comes back to the same ids however often it is decoded and
encoded. A conversation through the OpenAI API, which carries text only, is thus append-only in ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["CHAT_TEMPLATE", "SPECIALS", "VOCAB_SIZE", "spoken_ids", "token_id", "write_tokenizer"]

VOCAB_SIZE = 1024

SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)

# A space, as byte-level BPE writes it.
_SPACE = "\u0120"

_WORDS = """
the a an of to and in is it are was be has have with on at by for from this that these those what which who
where when how why one two three four five six seven eight nine ten no not yes all some any more most very
can may will would image images picture pictures photo video frame colour color red green blue yellow orange
purple black white grey brown describe show shows shown see look count compare answer question please tell
write list name explain same other another left right top bottom centre middle corner above below near
behind front between inside outside around large small long short wide tall round square circle triangle
line dot stripe shape pattern border edge light dark bright cat dog bird fish horse cow sheep tree leaf
flower grass river lake sea hill mountain sky cloud sun moon star rain snow house door window roof wall road
street bridge car bus train boat ship plane bicycle wheel table chair lamp book page letter word number map
clock bottle cup plate bread apple pear plum berry cheese water coffee tea milk stone wood glass person man
woman child hand face eye hair hat coat shoe shirt system user assistant you your we our they their he she
helpful model text image token prompt cache block first second third last next begin end again before after
seconds
""".split()

CHAT_TEMPLATE = """\
{%- macro parts(content) -%}
{%- if content is string -%}
{{- content -}}
{%- elif content -%}
{%- for part in content -%}
{%- if part is string -%}
{{- part -}}
{%- elif part.type in ('image', 'image_url') or 'image' in part or 'image_url' in part -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type in ('video', 'video_url') or 'video' in part or 'video_url' in part -%}
<|vision_start|><|video_pad|><|vision_end|>
{%- elif 'text' in part -%}
{{- part.text -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{- '<|im_start|>user\\n<tool_response>\\n' + parts(message.content) + '\\n</tool_response><|im_end|>\\n' -}}
{%- else -%}
{{- '<|im_start|>' + message.role + '\\n' + parts(message.content) -}}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>\\n' + (call.function or call) | tojson + '\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def token_id(special: str) -> int:
    """The id of one of `SPECIALS`."""
    return SPECIALS.index(special)


def spoken_ids() -> list[int]:
    """The ids of the words: what a tiny model may answer with."""
    ids, words = _vocabulary(), sorted(set(_WORDS))
    return [ids[_SPACE + word] for word in words if _SPACE + word in ids]


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    # Imported here: transformers takes seconds, and most callers find the folder ready.
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(vocab=_vocabulary(), merges=list(_merges())))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[s for s in SPECIALS if s not in ("<|im_end|>", "<|endoftext|>")],
        model_max_length=32768,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
    fast.save_pretrained(folder)


def _vocabulary() -> dict[str, int]:
    """Token to id: the specials, the 256 bytes, the trie of words, and fillers that no text gives."""
    tokens = [*SPECIALS, *_byte_alphabet(), *(left + right for left, right in _merges())]
    fillers = (f"<|extra_{i}|>" for i in range(VOCAB_SIZE - len(tokens)))
    return {token: i for i, token in enumerate([*tokens, *fillers])}


def _merges() -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    room = VOCAB_SIZE - len(SPECIALS) - 256
    for word in _WORDS:
        for end in range(1, len(word) + 1):
            left, right = _SPACE + word[: end - 1], word[end - 1]
            if left + right not in seen and len(seen) < room:
                seen.add(left + right)
                yield left, right


def _byte_alphabet() -> list[str]:
    """The character that byte-level BPE writes for each byte, in byte order (GPT-2's table)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
