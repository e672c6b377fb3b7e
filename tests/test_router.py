"""The router: placed in front of what it serves, and proved by real requests through it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from trial_plans import MODEL, fake_plan

from pdkv.errors import StageFailed
from pdkv.measuring.control_plane import http_get, http_post
from pdkv.measuring.deployment import Deployment
from pdkv.measuring.ports import reserved_ports


@pytest.fixture
def placed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Deployment]:
    with reserved_ports() as ports:
        deployment = Deployment.place(request.param, tmp_path, ports, gpus=[])
        yield deployment
        assert deployment.stop() == []


def completions_of(deployment: Deployment) -> dict[str, float]:
    counts = {}
    for instance in deployment.instances:
        _, text = http_get(f"{instance.server.url}/metrics", 5)
        counts[instance.name] = float(text.partition("request_success_total{")[2].split()[1])
    return counts


@pytest.mark.parametrize("placed", [fake_plan("2x")], indirect=True)
def test_replicas_are_dealt_to_in_turn(placed: Deployment) -> None:
    placed.start()
    placed.await_ready(60)
    before = completions_of(placed)
    body = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 2}
    assert [http_post(f"{placed.entry.url}/v1/completions", body, 10)[0] for _ in range(4)] == [200] * 4
    after = completions_of(placed)
    assert {name: after[name] - before[name] for name in after} == {"replica-0": 2, "replica-1": 2}
    assert placed.entry.name == "router"
    assert placed.router is not None
    assert http_get(placed.router.metrics_url, 5)[0] == 200


@pytest.mark.parametrize("placed", [fake_plan("1p1d")], indirect=True)
def test_urls_and_ports_are_filled_in(placed: Deployment) -> None:
    assert placed.router is not None
    argv = placed.router.server.argv
    urls = [instance.server.url for instance in placed.instances]
    assert argv[argv.index("--prefill") + 1] == urls[0]
    assert argv[argv.index("--decode") + 1] == urls[1]
    assert argv[argv.index("--port") + 1] == str(placed.router.server.port)
    assert (
        placed.router.record()["metrics_url"].split(":")[-1] == argv[argv.index("--prometheus-port") + 1] + "/metrics"
    )


def router_that_exits() -> dict[str, object]:
    plan = fake_plan("2x")
    plan["router"] = {"argv": [sys.executable, "-c", "raise SystemExit('error: no such policy')"]}
    return plan


@pytest.mark.parametrize("placed", [router_that_exits()], indirect=True)
@pytest.mark.fault("launch", "the router ends at once", "failed at launch, with the end of the router's log")
def test_a_router_that_exits_is_a_failed_launch(placed: Deployment) -> None:
    placed.start()
    with pytest.raises(StageFailed) as failure:
        placed.await_ready(60)
    assert failure.value.stage == "launch"
    assert failure.value.reason == "router ended with status 1: error: no such policy"


@pytest.mark.parametrize("placed", [fake_plan()], indirect=True)
def test_one_instance_needs_no_router(placed: Deployment) -> None:
    assert placed.router is None
    assert placed.entry.name == "single"
