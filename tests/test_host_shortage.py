"""What the kernel and the disk say when a server ends for want of memory or room."""

from pathlib import Path

import pytest

from pdkv.measuring import host_shortage
from pdkv.measuring.host_shortage import describe_shortage, out_of_memory_kills


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host_shortage, "CGROUPS", tmp_path)
    return tmp_path


def own_cgroup() -> str:
    return Path("/proc/self/cgroup").read_text().partition("0::/")[2].partition("\n")[0]


def count(cgroups: Path, kills: int) -> None:
    events = cgroups / own_cgroup() / "memory.events"
    events.parent.mkdir(parents=True, exist_ok=True)
    events.write_text(f"low 0\nhigh 4\nmax 12\noom 3\noom_kill {kills}\noom_group_kill 0\n")


def test_kills_of_the_own_group_are_counted(cgroups: Path) -> None:
    count(cgroups, 2)
    assert out_of_memory_kills() == 2


def test_without_a_group_the_host_counts(cgroups: Path) -> None:
    assert out_of_memory_kills() is not None, "/proc/vmstat"


@pytest.mark.parametrize(("before", "now", "said"), [(2, 3, True), (2, 2, False), (None, 3, False)])
def test_only_a_kill_since_the_start_is_a_reason(
    cgroups: Path, tmp_path: Path, before: int | None, now: int, said: bool
) -> None:
    count(cgroups, now)
    assert ("out of memory" in describe_shortage(before, tmp_path / "single.log")) is said


@pytest.mark.parametrize(("free", "said"), [(0, "only 0 B are free where its log is"), (1 << 30, ""), (None, "")])
def test_a_full_disk_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int | None, said: str) -> None:
    monkeypatch.setattr(host_shortage, "free_disk_bytes", lambda _: free)
    assert describe_shortage(None, tmp_path / "single.log") == said


def test_a_folder_that_is_not_there_says_nothing() -> None:
    assert host_shortage.free_disk_bytes(Path("/nonexistent/folder")) is None
