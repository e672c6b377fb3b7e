import itertools
import json
import statistics

import pytest

from pdkv.measuring.prompts import PART_CODES, SMALLEST_CACHE_BLOCK, Prompts, encode_body, send_offsets

PROMPTS = Prompts(seed=7, workload="chat", input_tokens=40, low=100, high=30_000)


def test_prompt_has_exact_length_and_stays_in_the_vocabulary() -> None:
    ids = [token for index in range(200) for token in PROMPTS.tokens(0, "measured", index)]
    assert len(ids) == 200 * 40
    assert min(ids) >= 100
    assert max(ids) < 30_000


def test_prompts_are_a_function_of_their_arguments() -> None:
    again = Prompts(seed=7, workload="chat", input_tokens=40, low=100, high=30_000)
    assert again.tokens(3, "measured", 5) == PROMPTS.tokens(3, "measured", 5)
    for other in (Prompts(8, "chat", 40, 100, 30_000), Prompts(7, "code", 40, 100, 30_000)):
        assert other.tokens(3, "measured", 5) != PROMPTS.tokens(3, "measured", 5)


@pytest.mark.parametrize("high", [116, 30_000])
def test_no_two_prompts_share_a_first_cache_block(high: int) -> None:
    prompts = Prompts(7, "chat", 40, 100, high)
    keys = list(itertools.product(range(-1, 5), PART_CODES, range(100)))
    blocks = {tuple(prompts.tokens(*key)[:SMALLEST_CACHE_BLOCK]) for key in keys}
    assert len(blocks) == len(keys)


def test_lead_lies_within_the_smallest_cache_block() -> None:
    assert len(Prompts(7, "chat", 40, 100, 116)._lead(1021, "warmup", 2**32 - 1)) <= SMALLEST_CACHE_BLOCK


def test_one_token_prompt() -> None:
    assert len(Prompts(7, "chat", 1, 100, 30_000).tokens(0, "ramp", 0)) == 1


@pytest.mark.parametrize(("length", "low", "high"), [(0, 100, 30_000), (4, 100, 105), (4, -1, 30_000)])
def test_impossible_prompts_are_refused(length: int, low: int, high: int) -> None:
    with pytest.raises(ValueError):
        Prompts(7, "chat", length, low, high)


def test_body_asks_for_exactly_the_tokens() -> None:
    body = json.loads(encode_body("m", [5, 6], 9))
    assert body == {
        "model": "m",
        "prompt": [5, 6],
        "max_tokens": 9,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


def test_constant_rate() -> None:
    assert send_offsets("constant", 4.0, 4, seed=1, workload="w", point=0) == [0, 0.25, 0.5, 0.75]


def test_poisson_gaps_are_exponential_and_seeded() -> None:
    offsets = send_offsets("poisson", 10.0, 20_001, seed=1, workload="w", point=0)
    gaps = [later - earlier for earlier, later in itertools.pairwise(offsets)]
    assert offsets[0] == 0
    assert statistics.mean(gaps) == pytest.approx(0.1, rel=0.03)
    assert statistics.pstdev(gaps) == pytest.approx(0.1, rel=0.05)  # constant gaps would have none
    assert send_offsets("poisson", 10.0, 20_001, seed=1, workload="w", point=0) == offsets
    assert send_offsets("poisson", 10.0, 20_001, seed=1, workload="w", point=1) != offsets


def test_open_loop_needs_a_rate() -> None:
    with pytest.raises(ValueError):
        send_offsets("poisson", 0.0, 3, seed=1, workload="w", point=0)
