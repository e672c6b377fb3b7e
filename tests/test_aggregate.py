import csv
import io
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from request_tables import answered, failed, simulate_closed_loop
from trial_folders import config_of, write_trial

from pdkv.analysing.aggregate import COLUMNS, aggregate
from pdkv.analysing.cell_summary import summarize_cell
from pdkv.artifacts import read_json, read_parquet, write_json


def cell_of(folder: Path, rows: list[dict[str, Any]], **trial: Any) -> Path:
    write_trial(folder / "r1", rows, **trial)
    summarize_cell([folder / "r1"], folder / "cell.json")
    return folder / "cell.json"


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_bytes().decode("utf-8"))))


def run(tmp_path: Path, *cells: Path) -> list[dict[str, str]]:
    aggregate(list(cells), tmp_path / "summary.parquet", tmp_path / "summary.csv")
    return rows_of(tmp_path / "summary.csv")


def test_one_row_for_each_number_in_the_promised_columns(tmp_path: Path) -> None:
    rows = run(tmp_path, cell_of(tmp_path / "c", simulate_closed_loop(2, 24)))
    assert (
        tuple(rows[0])
        == COLUMNS
        == ("workload", "mode", "dtype", "concurrency", "metric", "stat", "value", "unit", "n")
    )
    keys = [(row["concurrency"], row["metric"], row["stat"]) for row in rows]
    assert len(keys) == len(set(keys))
    assert {stat for load, metric, stat in keys if metric == "ttft"} == {
        "mean",
        "std",
        "median",
        "p90",
        "p99",
        "min",
        "max",
    }
    by_key = dict(zip(keys, rows, strict=True))
    cell = read_json(tmp_path / "c" / "cell.json", "cell/1")
    ttft = cell["points"][0]["metrics"]["ttft"]
    assert float(by_key["2", "ttft", "median"]["value"]) == pytest.approx(ttft["median"] * 1e3)
    assert by_key["2", "ttft", "median"]["unit"] == "ms"
    assert by_key["2", "ttft", "median"]["n"] == "24"
    assert by_key["2", "output_throughput", "value"]["unit"] == "tok/s"
    assert by_key["2", "request_throughput", "value"]["unit"] == "req/s"
    assert by_key["", "kv_cache_tokens", "value"]["value"] == "46592.0"
    assert by_key["", "launch", "value"] == dict(
        zip(COLUMNS, ("w", "default", "fp16", "", "launch", "value", "40.0", "s", "1"), strict=True)
    )
    assert by_key["", "overhead", "value"]["value"] == "6.0"


def test_parquet_holds_the_same(tmp_path: Path) -> None:
    rows = run(tmp_path, cell_of(tmp_path / "c", simulate_closed_loop(2, 24)))
    table = read_parquet(tmp_path / "summary.parquet").to_pylist()
    assert [{key: str(value) for key, value in row.items()} for row in table] == rows


def test_capacity_counts_the_instances_that_hold_requests_while_they_decode(tmp_path: Path) -> None:
    cells = [cell_of(tmp_path / mode, simulate_closed_loop(2, 24), mode=mode) for mode in ("1p1d", "2x")]
    tokens = {row["mode"]: float(row["value"]) for row in run(tmp_path, *cells) if row["metric"] == "kv_cache_tokens"}
    assert tokens == {"1p1d": 46592, "2x": 93184}


def test_what_is_missing_has_no_row(tmp_path: Path) -> None:
    one_token = cell_of(tmp_path / "a", [answered(float(t), [t + 0.5]) for t in range(8)], concurrencies=(1,))
    all_bad = cell_of(tmp_path / "b", [failed(float(t)) for t in range(8)], mode="chunked")
    oom = {"stage": "launch", "reason": "out of memory", "excerpt": ""}
    broken = cell_of(tmp_path / "c", [], mode="1p1d", failure=oom, environment={})
    rows = run(tmp_path, one_token, all_bad, broken)
    assert {row["metric"] for row in rows if row["mode"] == "default"} >= {"ttft", "e2el"}
    assert not [row for row in rows if row["metric"] in ("tpot", "itl")]
    assert not [row for row in rows if row["mode"] != "default"]
    assert all(row["value"] and row["n"] != "0" and math.isfinite(float(row["value"])) for row in rows)


def test_extremes_survive(tmp_path: Path) -> None:
    cell = cell_of(tmp_path / "c", simulate_closed_loop(2, 24))
    content = read_json(cell, "cell/1")
    metrics = content["points"][0]["metrics"]
    metrics["ttft"] |= {"mean": 3.2e-7, "std": None, "median": 0.0744}
    metrics["itl"]["min"] = 0.0
    metrics["output_throughput"]["value"] = 8.4e6
    write_json(cell, "cell/1", {key: value for key, value in content.items() if key != "schema"})
    values = {(row["metric"], row["stat"]): row["value"] for row in run(tmp_path, cell)}
    assert values["ttft", "mean"] == "0.00032"
    assert values["ttft", "median"] == "74.4"
    assert ("ttft", "std") not in values
    assert values["itl", "min"] == "0.0"
    assert values["output_throughput", "value"] == "8400000.0"


def test_names_with_commas_and_letters_beyond_ascii_are_kept(tmp_path: Path) -> None:
    cell = cell_of(tmp_path / "c", simulate_closed_loop(2, 24))
    content = read_json(cell, "cell/1") | {"mode": '预填充, "a"'}
    write_json(cell, "cell/1", {key: value for key, value in content.items() if key != "schema"})
    assert {row["mode"] for row in run(tmp_path, cell)} == {'预填充, "a"'}


def test_same_bytes_under_every_locale(tmp_path: Path) -> None:
    cell = cell_of(tmp_path / "c", simulate_closed_loop(2, 24))
    content = read_json(cell, "cell/1") | {"mode": "预填充"}
    write_json(cell, "cell/1", {key: value for key, value in content.items() if key != "schema"})
    code = (
        "import sys, pathlib; from pdkv.analysing.aggregate import aggregate; "
        "c, p, v = map(pathlib.Path, sys.argv[1:]); aggregate([c], p, v)"
    )
    written = set()
    for name, settings in {
        "posix": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        "german": {"LC_ALL": "de_DE.UTF-8"},
        "plain": {},
    }.items():
        csv_file = tmp_path / f"{name}.csv"
        command = [sys.executable, "-c", code, str(cell), str(tmp_path / f"{name}.parquet"), str(csv_file)]
        subprocess.run(command, check=True, env={**os.environ, **settings})
        written.add(csv_file.read_bytes())
    assert len(written) == 1
    assert "预填充".encode() in written.pop()


@pytest.mark.parametrize(("gpus", "mode", "units", "unit"), [(1, "1p1d", 2, "tok/s/GPU"), (0, "1p1d", 2, "tok/s/core")])
def test_throughput_for_each_device(tmp_path: Path, gpus: int, mode: str, units: int, unit: str) -> None:
    rows = run(tmp_path, cell_of(tmp_path / "c", simulate_closed_loop(2, 24), mode=mode, gpus=gpus))
    total, each = (
        next(row for row in rows if row["metric"] == metric)
        for metric in ("output_throughput", "output_throughput_per_device")
    )
    assert float(each["value"]) == pytest.approx(float(total["value"]) / units)
    assert (each["unit"], each["stat"], each["n"]) == (unit, "value", total["n"])


def test_a_server_of_the_users_has_no_known_devices(tmp_path: Path) -> None:
    config = config_of("default", "fp16")
    endpoint = {"mode": {**config["mode"], "endpoint": "http://127.0.0.1:9"}}
    rows = run(tmp_path, cell_of(tmp_path / "c", simulate_closed_loop(2, 24), config=endpoint))
    assert "output_throughput" in {row["metric"] for row in rows}
    assert "output_throughput_per_device" not in {row["metric"] for row in rows}
