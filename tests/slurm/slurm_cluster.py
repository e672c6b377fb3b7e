"""A Slurm cluster of one node on this machine: munged, slurmctld and slurmd as processes of the test, no accounting.

The node has two GPUs that do not exist (``gres`` over device nodes made with mknod) and more CPUs than the machine, so
that two trials fit beside each other anywhere. Slurm's own steps look for their configuration in ``/etc/slurm`` only:
it is put there and taken away again, and a cluster that is configured there already is left alone.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from pdkv.measuring.process_tree import become_subreaper, die_with_parent, kill_descendants

CONFIG = Path("/etc/slurm")
SIGNATURE = "# A test of pdkv made this file and takes it away when it ends."
NODE = "pdkv-node"
GPUS = 2
SLURM_CONF = """\
{signature}
ClusterName=pdkv-test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=sched_interval=2,bf_interval=2
GresTypes=gpu
# No cgroups: they differ from system to system, and may not be there at all.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
MinJobAge=900
KillWait=5
InactiveLimit=0
SlurmdParameters=config_overrides
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory_mb} Gres=gpu:{gpus}
PartitionName=test Nodes={node} Default=YES MaxTime=60 State=UP
"""
GRES_CONF = """\
{signature}
AutoDetect=off
NodeName={node} Name=gpu File={folder}/fakegpu[0-{last}]
"""
CPUS, MEMORY_MB = 32, 512_000


class Cluster:
    """Runs from the beginning of its context to the end; then nothing of it is left, processes and files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._files: list[Path] = []

    def __enter__(self) -> "Cluster":
        refuse_foreign_cluster()
        become_subreaper()  # what Slurm's steps leave behind becomes ours, and is ended with the rest
        try:
            self._configure()
            self._start("munged", "--foreground", "--force", *self._munge_options())
            wait_until(lambda: (self.folder / "munge.socket").exists(), "munged listens")
            self._start("slurmctld", "-D", "-i")
            self._start("slurmd", "-D", "-N", NODE)
            wait_until(lambda: self.node_state() == "idle", "the node is idle", self.describe)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    # ---- what a person would type ----

    def node_state(self) -> str:
        return self._ask("sinfo", "--noheader", "--format=%T")

    def job_states(self) -> dict[str, str]:
        """``{job id: state}`` of all jobs, ended ones too."""
        lines = self._ask("squeue", "--states=all", "--noheader", "--format=%i %T").splitlines()
        return dict(line.split() for line in lines)

    def jobs_of(self, trial: str) -> list[str]:
        """``"ID STATE"`` of every job that was submitted for a trial (``w/default/fp16/r1``), in order."""
        comment = f"rule_measure_wildcards_{trial.replace('/r', '/').replace('/', '_')}"
        lines = self._ask("squeue", "--states=all", "--noheader", "--sort=i", "--format=%i %T %k").splitlines()
        return [f"{words[0]} {words[1]}" for words in map(str.split, lines) if words[2:] == [comment]]

    def running_job(self, trial: str) -> str | None:
        """The id of a trial's job, if it runs."""
        running = [job.partition(" ")[0] for job in self.jobs_of(trial) if job.endswith(" RUNNING")]
        return running[-1] if running else None

    def first_running_job(self) -> str:
        return next(job for job, state in self.job_states().items() if state == "RUNNING")

    def count_jobs(self, state: str) -> int:
        return list(self.job_states().values()).count(state)

    def describe_job(self, job: str) -> str:
        return self._ask("scontrol", "show", "job", "--details", job)

    def cancel(self, job: str) -> None:
        self._ask("scancel", job)

    def set_node(self, state: str) -> None:
        """``drain``, ``down`` or ``resume``."""
        self._ask("scontrol", "update", f"NodeName={NODE}", f"State={state}", "Reason=test")

    def describe(self) -> str:
        """The daemons' last words."""
        logs = [self.folder / f"{name}.log" for name in ("munged", "slurmctld", "slurmd")]
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in logs if log.exists())

    def _ask(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.stdout.strip()

    # ---- start and end ----

    def _configure(self) -> None:
        for name in ("state", "spool"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "munge.key").write_bytes(secrets.token_bytes(64))
        (self.folder / "munge.key").chmod(0o600)
        self.folder.chmod(0o755)
        for number in range(GPUS):
            os.mknod(self.folder / f"fakegpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        control_port, node_port = free_ports(2)
        values = {
            "signature": SIGNATURE,
            "host": socket.gethostname().partition(".")[0],
            "user": "root",
            "folder": self.folder,
            "control_port": control_port,
            "node_port": node_port,
            "node": NODE,
            "cpus": CPUS,
            "memory_mb": MEMORY_MB,
            "gpus": GPUS,
            "last": GPUS - 1,
        }
        CONFIG.mkdir(exist_ok=True)
        for name, text in (("slurm.conf", SLURM_CONF), ("gres.conf", GRES_CONF)):
            self._files.append(CONFIG / name)
            (CONFIG / name).write_text(text.format(**values))

    def _munge_options(self) -> list[str]:
        names = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log"}
        names["seed-file"] = "munge.seed"
        return ["--num-threads=2", *(f"--{option}={self.folder / name}" for option, name in names.items())]

    def _start(self, program: str, *arguments: str) -> None:
        found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        assert found, f"{program} is not installed: tests/slurm/install.sh"
        with (self.folder / f"{program}.out").open("ab") as output:
            daemon = subprocess.Popen(
                [found, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=die_with_parent,  # the tests may be killed
            )
        self._daemons.append(daemon)

    def _end(self) -> None:
        if len(self._daemons) == 3:
            self._ask("scancel", "--user=root")
            with contextlib.suppress(AssertionError):
                wait_until(lambda: not self._ask("squeue", "--noheader"), "no job is left", patience_s=20)
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
        kill_descendants(os.getpid())
        for file in self._files:
            file.unlink(missing_ok=True)


def refuse_foreign_cluster() -> None:
    """Raise where Slurm is configured for something else than this test."""
    for name in ("slurm.conf", "gres.conf"):
        with contextlib.suppress(FileNotFoundError):
            text = (CONFIG / name).read_text()
            assert text.startswith(SIGNATURE), f"{CONFIG / name} is of another cluster: run this test elsewhere"


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_until(
    condition: Callable[[], object], what: str, why_not: Callable[[], str] = str, patience_s: float = 60.0
) -> None:
    """Return as soon as ``condition`` holds; fail with ``what`` was waited for, and ``why_not``."""
    give_up_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < give_up_s, f"not within {patience_s:g} s: {what}\n{why_not()}"
        time.sleep(0.3)
