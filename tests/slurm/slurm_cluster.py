"""A Slurm cluster on this machine: munged, slurmctld and slurmd as processes of the test, no accounting.

A node has two GPUs that do not exist (``gres`` over device nodes made with mknod) and more CPUs than the machine, so
that two trials fit beside each other anywhere. Slurm's own steps look for their configuration in ``/etc/slurm`` only:
it is put there and taken away again, and a cluster that is configured there already is left alone.

Of several nodes each has a network namespace, and so addresses and ports, and a host name of its own.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pdkv.measuring.process_tree import become_subreaper, die_with_parent, kill_descendants

CONFIG = Path("/etc/slurm")
SIGNATURE = "# A test of pdkv made this file and takes it away when it ends."
NODE = "pdkv-node"
GPUS = 2
SLURM_CONF = """\
{signature}
ClusterName=pdkv-test
SlurmctldHost={host}({control_address})
SlurmctldPort={control_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
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
PartitionName=test Nodes={nodes} Default=YES MaxTime=60 State=UP
"""
NODE_LINE = (
    "NodeName={name} NodeHostname={host} NodeAddr={address} CPUs={cpus} RealMemory={memory_mb} Gres=gpu:{gpus}\n"
)
GRES_CONF = """\
{signature}
AutoDetect=off
NodeName={nodes} Name=gpu File={folder}/fakegpu[0-{last}]
"""
CPUS, MEMORY_MB = 32, 512_000
BRIDGE = "pdkv-br"
SUBNET = "198.18.77"  # of the range for benchmarks: no route leads there


@dataclass(frozen=True)
class Node:
    """``namespace``: whether it has a network and a host name of its own, both under its name, and then a ``core``."""

    name: str
    host: str
    address: str
    namespace: bool
    core: int = 0

    @property
    def prefix(self) -> list[str]:
        """What starts a command on the node."""
        if not self.namespace:
            return []
        # UCX looks for networks in /sys/class/net: it must be that of the namespace. Slurm wants its cgroups there too.
        mounts = "mount --rbind /sys/fs/cgroup /mnt && mount -t sysfs sysfs /sys && mount --rbind /mnt /sys/fs/cgroup"
        named = ["unshare", "--uts", "--mount", "sh", "-c", f'{mounts} && hostname {self.name} && exec "$@"', "sh"]
        bound = ["taskset", "--cpu-list", str(self.core)]  # engines of two nodes would wait for each other's threads
        return [*bound, "nsenter", f"--net=/run/netns/{self.name}", *named]


def plan_nodes(count: int) -> list[Node]:
    """One node is this machine itself."""
    if count == 1:
        return [Node(NODE, socket.gethostname().partition(".")[0], "127.0.0.1", False)]
    names = [f"{NODE}{number}" for number in range(1, count + 1)]
    cores = sorted(os.sched_getaffinity(0))
    return [
        Node(name, name, f"{SUBNET}.{10 + number}", True, cores[number % len(cores)])
        for number, name in enumerate(names, 1)
    ]


class Cluster:
    """Runs from the beginning of its context to the end; then nothing of it is left, processes and files."""

    def __init__(self, folder: Path, nodes: int = 1) -> None:
        self.folder = folder
        self.nodes = plan_nodes(nodes)
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._files: list[Path] = []

    def __enter__(self) -> "Cluster":
        refuse_foreign_cluster()
        become_subreaper()  # what Slurm's steps leave behind becomes ours, and is ended with the rest
        try:
            self._join_nodes()
            self._configure()
            self._start("munged", "--foreground", "--force", *self._munge_options())
            wait_until(lambda: (self.folder / "munge.socket").exists(), "munged listens")
            self._start("slurmctld", "-D", "-i")
            for node in self.nodes:
                self._start("slurmd", "-D", "-N", node.name, on=node)
            wait_until(lambda: self.node_state() == "idle", "the nodes are idle", self.describe)
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

    def bytes_received(self, node: str) -> int:
        """Over the network of a node, since the cluster's start."""
        shown = json.loads(self._ask("ip", "-n", node, "-json", "-stats", "link", "show", "eth0"))
        return int(shown[0]["stats64"]["rx"]["bytes"])

    def cancel(self, job: str) -> None:
        self._ask("scancel", job)

    def set_node(self, state: str) -> None:
        """``drain``, ``down`` or ``resume``."""
        self._ask("scontrol", "update", f"NodeName={NODE}", f"State={state}", "Reason=test")

    def describe(self) -> str:
        """The daemons' last words."""
        logs = [self.folder / "munged.log", *sorted(self.folder.glob("slurm*.log"))]
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in logs if log.exists())

    def _ask(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.stdout.strip()

    # ---- start and end ----

    def _configure(self) -> None:
        for name in ("state", *(f"spool-{node.name}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "munge.key").write_bytes(secrets.token_bytes(64))
        (self.folder / "munge.key").chmod(0o600)
        self.folder.chmod(0o755)
        for number in range(GPUS):
            os.mknod(self.folder / f"fakegpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        control_port, node_port = free_ports(2)
        values: dict[str, object] = {
            "signature": SIGNATURE,
            "control_address": f"{SUBNET}.1" if self.nodes[0].namespace else "127.0.0.1",
            "host": socket.gethostname().partition(".")[0],
            "user": "root",
            "folder": self.folder,
            "control_port": control_port,
            "node_port": node_port,
            "nodes": ",".join(node.name for node in self.nodes),
            "cpus": CPUS,
            "memory_mb": MEMORY_MB,
            "gpus": GPUS,
            "last": GPUS - 1,
        }
        CONFIG.mkdir(exist_ok=True)
        for name, text in (("slurm.conf", SLURM_CONF), ("gres.conf", GRES_CONF)):
            self._files.append(CONFIG / name)
            (CONFIG / name).write_text(text.format(**values))
        lines = "".join(NODE_LINE.format(**{**values, **vars(node)}) for node in self.nodes)
        text = (CONFIG / "slurm.conf").read_text()
        (CONFIG / "slurm.conf").write_text(text.replace("PartitionName", f"{lines}PartitionName"))

    def _join_nodes(self) -> None:
        """A network namespace for each of several nodes, joined by a bridge, on which this machine has an address."""
        joined = [node for node in self.nodes if node.namespace]
        if not joined:
            return
        self._part_nodes()  # what a run that was killed has left
        commands = [f"link add {BRIDGE} type bridge", f"addr add {SUBNET}.1/24 dev {BRIDGE}", f"link set {BRIDGE} up"]
        for number, node in enumerate(joined, 1):
            commands += [
                f"netns add {node.name}",
                f"link add {BRIDGE}{number} type veth peer name eth0 netns {node.name}",
                f"link set {BRIDGE}{number} master {BRIDGE} up",
                f"-n {node.name} addr add {node.address}/24 dev eth0",
                f"-n {node.name} link set eth0 up",
                f"-n {node.name} link set lo up",
            ]
        for command in commands:
            subprocess.run(["ip", *command.split()], check=True, timeout=30)

    def _part_nodes(self) -> None:
        for node in self.nodes:
            if node.namespace:
                subprocess.run(["ip", "netns", "delete", node.name], capture_output=True, timeout=30)
        subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True, timeout=30)

    def _munge_options(self) -> list[str]:
        names = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log"}
        names["seed-file"] = "munge.seed"
        return ["--num-threads=2", *(f"--{option}={self.folder / name}" for option, name in names.items())]

    def _start(self, program: str, *arguments: str, on: Node | None = None) -> None:
        found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        assert found, f"{program} is not installed: tests/slurm/install.sh"
        with (self.folder / f"{program}.out").open("ab") as output:
            daemon = subprocess.Popen(
                [*(on.prefix if on else []), found, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=die_with_parent,  # the tests may be killed
            )
        self._daemons.append(daemon)

    def _end(self) -> None:
        if len(self._daemons) > 2:
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
        if any(node.namespace for node in self.nodes):
            self._part_nodes()


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
