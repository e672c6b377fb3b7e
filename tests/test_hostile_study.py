"""A study of values that a shell would run, and secrets around it: nothing runs, nothing escapes, nothing leaks."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parent.parent
HOSTILE = "$(touch pwned); `touch pwned` ' \" & touch pwned | touch pwned > pwned {input} {{x}} %s ~ * \\"
SECRETS = {
    "HF_TOKEN": "hf_thisIsTheTokenOfTheHub0123456789",
    "OPENAI_API_KEY": "sk-thisIsTheKeyOfOpenAI0123456789",
    "VLLM_API_KEY": "thisIsTheKeyOfTheServer",
    "MY_DB_PASSWORD": 'thePasswordOf"The\\Database-é',
    "AWS_SECRET_ACCESS_KEY": "thisIsTheSecretOfAws",
    "https_proxy": "http://me:thePasswordOfTheProxy@127.0.0.1:9",
}
# Pieces that no escaping changes.
HIDDEN_VALUES = [*(value[:13] for name, value in SECRETS.items() if name != "https_proxy"), "thePasswordOfTheProxy"]
OTHERS = {
    "DB_PASS": "passOfTheDatabase",
    "MYSQL_PWD": "pwdOfMySql",
    "HUGGINGFACEHUB_APITOKEN": "apitokenOfTheHub",
    "TOKEN_PROD": "tokenOfProduction",
    "API_KEYS": "firstOfTheKeys,secondOfTheKeys",
    "SESSION_COOKIE": "id=cookieOfTheSession; Path=/",
    "AUTH_HEADER": "Bearer bearerOfTheHeader",
    "FOO": "hf_anotherTokenOfTheHub0123",
    "SOME_INDEX_URL": "https://ghp_tokenOfAnIndex0123456789@github.com/x",
    "SOME_PROXY": "http://me:p@tailOfThePassword@127.0.0.1:9/",
    "SHORT_PROXY": "http://me:pw987@127.0.0.1:9/",
}
HIDDEN_VALUES += ["passOfTheDatabase", "pwdOfMySql", "apitokenOfTheHub", "tokenOfProduction", "firstOfTheKeys"]
HIDDEN_VALUES += ["secondOfTheKeys", "cookieOfTheSession", "bearerOfTheHeader", "hf_anotherToken", "ghp_tokenOfAnIndex"]
HIDDEN_VALUES += ["tailOfThePassword", "pw987"]
SECRETS |= OTHERS
CLAIMS = "config/cla ims' $(touch pwned);.yaml"


def study_text() -> str:
    """As JSON, which is YAML: every hostile character is quoted for sure."""
    return json.dumps(
        {
            "model": HOSTILE,
            "engine": {
                "command": [sys.executable, str(ROOT / "tests/fake_engine.py")],
                "args": {"some-flag": HOSTILE, "json-flag": {HOSTILE: [HOSTILE]}},
                "env": {"SOME_NAME": HOSTILE, "FAKE_TELLS_ALL": "1"},
            },
            "workloads": {
                "w-é.+": {"input_tokens": 8, "output_tokens": 4, "concurrency": 1, "requests": 4, "max_model_len": 64}
            },
            "modes": {
                "mine": {"args": {"max_num_seqs": 8}},
                "broken": {"env": {"FAKE_EXIT": "3", "ODD": HOSTILE}},
                "failing": {"env": {"FAKE_STATUS": "500"}},  # with an error that tells all
            },
            "dtypes": ["fp16"],
            "report": {"title": HOSTILE, "claims": CLAIMS},
        },
        ensure_ascii=False,
    )


def snakemake(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "1", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PDKV_LEASE_DIR": str(folder.parent / "leases"), **SECRETS},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        timeout=300,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a hostile study that ran to its report, and all that it said on the terminal."""
    folder = tmp_path_factory.mktemp("around") / "o'brien (2) é $(touch pwned)"
    (folder / "config").mkdir(parents=True)
    (folder / "config/config.yaml").write_text(study_text(), encoding="utf-8")
    shutil.copy(ROOT / "config/claims.yaml", folder / CLAIMS)
    dry = snakemake(folder, "--dry-run", "--printshellcmds")
    assert dry.returncode == 0, dry.stdout
    assert not (folder / "results").exists()
    done = snakemake(folder, "--printshellcmds")
    assert done.returncode == 0, done.stdout
    assert (folder / "reports/summary.pdf").is_file()
    return folder, dry.stdout + done.stdout


def everything_in(path: Path) -> bytes:
    """The bytes of a file; of Parquet, of which only the compressed ones would be seen, the values."""
    if path.suffix == ".parquet":
        return repr(pq.read_table(path).to_pylist()).encode()
    return path.read_bytes()


@pytest.mark.fault("input", "shell code in names, values, paths and titles of a study", "nothing of it runs")
def test_nothing_of_it_ran(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    assert not [path for path in folder.parent.rglob("*") if path.name == "pwned"]
    assert not (ROOT / "pwned").exists()


@pytest.mark.fault("input", "names that lead out of the folder", "nothing is written outside results/ and reports/")
def test_nothing_was_written_elsewhere(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    assert {path.name for path in folder.iterdir()} <= {"config", "results", "reports", ".snakemake", ".cache"}
    assert {path.name for path in folder.parent.iterdir()} <= {folder.name, "leases"}


def test_hostile_values_reach_the_engine_as_they_are(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    stages = json.loads((folder / "results/w-é.+/mine/fp16/r1/stages.json").read_text("utf-8"))
    assert stages["outcome"]["status"] == "ok"
    argv = stages["instances"][0]["argv"]
    assert HOSTILE in argv and stages["instances"][0]["env"]["SOME_NAME"] == HOSTILE


@pytest.mark.fault("input", "nobody said where servers listen", "on loopback only")
def test_servers_listen_on_loopback(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    for stages in folder.rglob("stages.json"):
        for instance in json.loads(stages.read_text("utf-8"))["instances"]:
            argv = instance["argv"]
            assert argv[argv.index("--host") + 1] == "127.0.0.1"
            assert argv.count("--host") == 1


def test_the_server_did_tell(finished: tuple[Path, str]) -> None:
    """Else the next test would prove nothing."""
    folder, _ = finished
    log = (folder / "results/w-é.+/mine/fp16/r1/server/single.log").read_text("utf-8")
    assert "HF_TOKEN=[hidden]" in log and "me:[hidden]@" in log
    assert re.search(r'"MY_DB_PASSWORD": "\[hidden\]"', log)
    assert "VLLM_API_KEY" not in log, "a server with a key of its own would refuse our requests"
    assert all(f"{name}=" in log for name in OTHERS)
    scrapes = (folder / "results/w-é.+/mine/fp16/r1/scrapes.jsonl").read_text("utf-8")
    assert "HF_TOKEN" in scrapes
    broken = json.loads((folder / "results/w-é.+/broken/fp16/r1/stages.json").read_text("utf-8"))
    assert broken["outcome"]["status"] == "failed"
    answers = everything_in(folder / "results/w-é.+/mine/fp16/r1/events.parquet").decode()
    assert "HF_TOKEN" in answers and "[hidden]**" in answers
    failing = json.loads((folder / "results/w-é.+/failing/fp16/r1/stages.json").read_text("utf-8"))
    assert "500 Internal Server Error: " in failing["outcome"]["reason"]
    assert "AWS_SECRET_ACCESS_KEY=[hidden]" in broken["outcome"]["excerpt"] or "[hidden]" in json.dumps(broken)


@pytest.mark.fault(
    "input",
    "API keys, tokens and passwords in the environment",
    "in no plan, log, result, report or line on the terminal",
)
@pytest.mark.parametrize("secret", HIDDEN_VALUES)
def test_no_file_and_no_line_holds_a_secret(finished: tuple[Path, str], secret: str) -> None:
    folder, said = finished
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 30
    assert secret not in said
    assert not [str(path.relative_to(folder)) for path in files if secret.encode() in everything_in(path)]
