"""Thousands of spoilt configs: each is a study that can be planned, or is refused by name, never with a traceback."""

import copy
import json
import random
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from config_mutations import ENDPOINT, HOSTILE_TEXTS, KEYS, MAXIMAL, mutated_config

from pdkv.artifacts import write_json
from pdkv.errors import UserError
from pdkv.measuring.plan import plan_trial
from pdkv.measuring.resolve import choose_engine, resolve_model
from pdkv.measuring.survey import describe_survey, survey_study
from pdkv.records import Trial
from pdkv.study.config import load_study

ROOT = Path(__file__).parent.parent
MOST_TEXT = 4000
ODD_VALUES = (
    *HOSTILE_TEXTS,
    *("\ud800", float("nan"), float("inf"), 10**400, -1, 0, True, None, [], {}, {1: 2}, {None: {}}, {False: {}}),
    *([[[]]], {"a": [1, {"b": None}]}, {"a"}, b"x", (1, 2), object()),
)
TEXT_KEYS: tuple[tuple[str | int, ...], ...] = (
    ("model", "name"),
    ("model", "load_format"),
    ("model", "revision"),
    ("model", "tokenizer"),
    ("engine", "python"),
    ("engine", "args", "some-flag"),
    ("engine", "env", "SOME_NAME"),
    ("modes", "chunked", "env", "SOME_NAME"),
    ("modes", "1p1d", "prefill_args", "some-flag"),
    ("modes", "1p1d", "kv_connector", "name"),
    ("modes", "1p1d", "kv_connector", "config", "k"),
    ("report", "title"),
    ("report", "claims"),
    ("report", "baseline", "mode"),
    ("dtypes", 0),
)


@pytest.fixture
def try_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str | None]:
    """Everything that `pdkv check` and the planning of trials do with a config; the message if it is refused."""
    monkeypatch.chdir(tmp_path)
    path, home = Path("study.yaml"), Path(".engine")

    def attempt(raw: bytes, **overrides: Any) -> str | None:
        path.write_bytes(raw)
        try:
            study = load_study(path, overrides)
            describe_survey(survey_study(study, home)).encode("utf-8")
            for trial in study.trials()[:3]:
                assert Trial.from_slice(trial.to_slice()) == trial
                plan = plan_trial(trial, choose_engine(trial.engine, home), *resolve_model(trial.model, home))
                write_json(tmp_path / "plan.json", "plan/1", plan)
                assert json.loads((tmp_path / "plan.json").read_text("utf-8"))["trial"] == json.loads(trial.to_slice())
        except UserError as error:
            return str(error)
        return None

    return attempt


def assert_helpful(message: str | None, name: object, where: str = "study.yaml") -> None:
    if message is not None:
        assert where in message, (name, message)
        assert len(message) < MOST_TEXT, (name, message)
        assert not any(unicodedata.category(char) in ("Cc", "Cs") for char in message.replace("\n", "")), (
            name,
            message,
        )


@pytest.mark.fault(
    "input", "1,600 mutated config files", "each is planned or ends in one message with the file; never a traceback"
)
@pytest.mark.parametrize("block", range(4))
def test_spoilt_files_are_planned_or_refused(try_config: Callable[..., str | None], block: int) -> None:
    outcomes: Counter[bool] = Counter()
    for seed in range(block * 400, (block + 1) * 400):
        try:
            message = try_config(mutated_config(seed))
        except Exception as error:
            raise AssertionError(f"mutated_config({seed}) ends in {error!r}") from error
        assert_helpful(message, seed)
        outcomes[message is None] += 1
    assert outcomes[True] > 15 and outcomes[False] > 200, "the mutations reach both sides"


@pytest.mark.fault(
    "input", "hostile texts at every key that takes a text", "planned as they are or refused by name; no traceback"
)
@pytest.mark.parametrize("key", TEXT_KEYS, ids=lambda key: ".".join(map(str, key)))
def test_hostile_texts_at_every_key_that_takes_a_text(
    try_config: Callable[..., str | None], key: tuple[str | int, ...]
) -> None:
    study = yaml.safe_load(MAXIMAL)
    for text in HOSTILE_TEXTS:
        changed = copy.deepcopy(study)
        place = changed
        for part in key[:-1]:
            place = place[part]
        place[key[-1]] = text
        assert_helpful(try_config(json.dumps(changed).encode()), text)


def test_hostile_addresses_and_commands(try_config: Callable[..., str | None]) -> None:
    for text in HOSTILE_TEXTS:
        running = yaml.safe_load(ENDPOINT)
        running["modes"]["running"]["endpoint"] = text
        assert_helpful(try_config(json.dumps(running).encode()), text)
        commanded = yaml.safe_load(MAXIMAL)
        commanded["engine"] = {"command": text}
        assert_helpful(try_config(json.dumps(commanded).encode()), text)


@pytest.mark.fault("input", "hostile keys at every level", "refused by name, with what is allowed")
@pytest.mark.parametrize("place", [(), ("workloads",), ("modes",), ("modes", "1p1d"), ("engine", "args")])
def test_hostile_keys(try_config: Callable[..., str | None], place: tuple[str, ...]) -> None:
    for key in (*HOSTILE_TEXTS, *KEYS):
        study = yaml.safe_load(MAXIMAL)
        below = study
        for part in place:
            below = below[part]
        values = {(): "1", ("workloads",): study["workloads"]["short"], ("modes",): {"replicas": 1}}
        below[key] = values.get(place, "1")
        assert_helpful(try_config(json.dumps(study).encode()), key)


@pytest.mark.fault("input", "anything after --config", "one message that names --config")
def test_anything_on_the_command_line(try_config: Callable[..., str | None]) -> None:
    """Snakemake's --config brings whatever YAML makes of it, past our own reading of the file."""
    rng = random.Random(5)
    keys = list(yaml.safe_load(MAXIMAL))
    refused = 0
    for _ in range(600):
        value = rng.choice(ODD_VALUES)
        if rng.random() < 0.4:
            value = {rng.choice((*KEYS, 1, False, None)): value}
        override = {rng.choice((*keys, *keys, *KEYS)): value}
        message = try_config(MAXIMAL.encode(), **override)
        assert_helpful(message, override, "--config" if message and "--config" in message else "study.yaml")
        refused += message is not None
    assert refused > 400


def spoilt_files(count: int, folder: Path) -> Iterator[Path]:
    for seed in range(10_000, 10_000 + count):
        path = folder / f"study-{seed}.yaml"
        path.write_bytes(mutated_config(seed))
        yield path


@pytest.mark.fault("input", "mutated config files at `pdkv check`", "exit status 0 or 2, never a traceback")
def test_the_command_line_says_the_same(tmp_path: Path) -> None:
    """In one process: what `pdkv check` prints and how it exits, without the start of Python thirty times."""
    names = [str(path) for path in spoilt_files(40, tmp_path)]
    code = (
        "import sys\nfrom pdkv.cli import main\n"
        f"for name in {names!r}:\n"
        "    try: main(['check', '--config', name])\n"
        "    except SystemExit as end: print('exit', end.code, name, file=sys.stderr, flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8", timeout=300)
    endings = [line.split()[1] for line in done.stderr.splitlines() if line.startswith("exit ")]
    assert len(endings) == len(names), done.stderr
    assert set(endings) <= {"0", "2"} and endings.count("2") > 20
    assert "Traceback" not in done.stderr


@pytest.mark.fault(
    "input",
    "mutated config files at `snakemake --configfile`",
    "exit status 2 with the file; what is no YAML at all ends in Snakemake's own message, status 1",
)
def test_snakemake_says_the_same(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "1", "--dry-run"]
    for path in spoilt_files(6, tmp_path):
        done = subprocess.run(
            [*command, "--directory", str(tmp_path), "--configfile", str(path)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=120,
        )
        assert "Traceback" not in done.stdout
        if done.returncode == 1:  # Snakemake reads the file too, and first: what is no YAML at all it says itself
            assert "Config file is not valid JSON or YAML" in done.stdout
        elif done.returncode != 0:
            assert done.returncode == 2 and path.name in done.stdout, done.stdout
