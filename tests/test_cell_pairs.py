from typing import Any

import pytest

from pdkv.analysing.cell_pairs import pair_cells


def cell(mode: str, prefill: int = 0, decode: int = 0, replicas: int = 0, gpus_each: int = 0) -> dict[str, Any]:
    instances = prefill + decode or replicas
    return {
        "workload": "w",
        "mode": mode,
        "dtype": "fp16",
        "gpus": instances * gpus_each,
        "instances": instances,
        "config": {
            "mode": {"prefill": prefill, "decode": decode, "replicas": replicas},
            "dtype": {"kv_cache_dtype": "auto"},
        },
    }


def rivals(*cells: dict[str, Any]) -> dict[str, str]:
    pairs = pair_cells(cells, "default", "fp16")
    return {pair.side.cell["mode"]: pair.base.cell["mode"] for pair in pairs if pair.factor == "hardware"}


@pytest.mark.parametrize("gpus_each", [0, 1, 2])
@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (1, 2), (2, 1), (2, 2), (1, 3)])
def test_any_split_meets_as_many_replicas(prefill: int, decode: int, gpus_each: int) -> None:
    """Without GPUs instances count, with GPUs their number."""
    split = cell("split", prefill=prefill, decode=decode, gpus_each=gpus_each)
    replicas = [cell(f"{n}x", replicas=n, gpus_each=gpus_each) for n in (2, 3, 4, 5)]
    assert rivals(cell("default", replicas=1, gpus_each=gpus_each), *replicas, split) == {
        "split": f"{prefill + decode}x"
    }


def test_gpus_count_before_instances() -> None:
    split = cell("1p1d", prefill=1, decode=1, gpus_each=2)
    assert rivals(cell("2x", replicas=2, gpus_each=1), split) == {}
    assert rivals(cell("4x", replicas=4, gpus_each=1), split) == {"1p1d": "4x"}


def test_of_two_rivals_that_with_as_many_instances_is_taken() -> None:
    split = cell("2p2d", prefill=2, decode=2, gpus_each=1)
    two, four = cell("2x", replicas=2, gpus_each=2), cell("4x", replicas=4, gpus_each=1)
    assert rivals(two, four, split) == rivals(four, two, split) == {"2p2d": "4x"}


def test_on_cores_that_with_as_many_ranks_is_taken() -> None:
    split, one, two = cell("1p1d", prefill=1, decode=1), cell("2x", replicas=2), cell("wide", replicas=2)
    for each in (split, two):
        each["config"]["mode"]["tensor_parallel_size"] = 2
    assert rivals(one, two, split) == rivals(two, one, split) == {"1p1d": "wide"}


def test_one_instance_on_as_many_gpus_is_no_replica() -> None:
    """It is the base of the mode effect."""
    assert rivals(cell("default", replicas=1, gpus_each=2), cell("1p1d", prefill=1, decode=1, gpus_each=1)) == {}
