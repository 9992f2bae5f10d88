from __future__ import annotations

import pytest

from app.engine_args import parse_engine_args


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("", {}),
        ("--max-num-seqs 8 --enforce-eager", {"max_num_seqs": 8, "enforce_eager": True}),
        ("--max-num-seqs=8 --dtype=bfloat16", {"max_num_seqs": 8, "dtype": "bfloat16"}),
        ("--no-enable-prefix-caching", {"enable_prefix_caching": False}),
        ("""--limit-mm-per-prompt '{"image": 4}'""", {"limit_mm_per_prompt": {"image": 4}}),
        ("--lora-modules a=b c=d", {"lora_modules": ["a=b", "c=d"]}),
        ("--seed -1", {"seed": -1}),
        ('{"max_num_seqs": 8}', {"max_num_seqs": 8}),
    ],
)
def test_flags_and_json_are_read(text, parsed):
    assert parse_engine_args(text) == parsed


@pytest.mark.parametrize("text", ["8 --seed 1", '{"max_num_seqs": ', "--dtype 'unclosed"])
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError):
        parse_engine_args(text)
