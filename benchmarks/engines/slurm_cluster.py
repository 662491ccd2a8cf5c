"""A real Slurm cluster on this host: one slurmctld, and a slurmd for each node that it plays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import psutil

from headway.local.ports import free_port

INSTALLED = all(shutil.which(one) for one in ("slurmctld", "slurmd", "sbatch", "squeue", "scancel"))
MISSING = "SLURM IS NOT INSTALLED: ITS PROVIDER IS NOT TRIED (Debian: make slurm)"
_START_S = 30.0
_CONF = """\
ClusterName=hall
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/accounts
KillWait={kill_wait_s}
MessageTimeout=3
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=10000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE Default=YES State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF State=UP
"""


@dataclass
class Slurm:
    """Slurm cluster `hall` with nodes n1, n2 and so on, all in the partitions `low` (preemptible) and `high`."""

    folder: Path
    nodes: int
    cpus: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        """File of its settings, for `SLURM_CONF`."""
        return self.folder / "slurm.conf"

    def start(self, kill_wait_s: int) -> None:
        """Start the controller and all nodes, and return once they are idle."""
        host = os.uname().nodename.partition(".")[0]
        nodes = "\n".join(
            f"NodeName=n{one} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs={self.cpus} RealMemory=1000"
            for one in range(1, self.nodes + 1)
        )
        (self.folder / "state").mkdir(parents=True)
        values = {"host": host, "port": free_port(), "folder": self.folder, "kill_wait_s": kill_wait_s}
        self.conf.write_text(_CONF.format(nodes=nodes, **values), encoding="utf-8")
        self.start_controller()
        for one in range(1, self.nodes + 1):
            (self.folder / f"spool.n{one}").mkdir()
            self.start_node(f"n{one}")
        self.until_idle(self.nodes)

    def start_controller(self) -> None:
        """Start slurmctld in the foreground."""
        self.processes["slurmctld"] = self._spawn("slurmctld", "-D", "-f", str(self.conf))

    def start_node(self, name: str) -> None:
        """Start the slurmd of a node in the foreground."""
        self.processes[name] = self._spawn("slurmd", "-D", "-N", name, "-f", str(self.conf))

    def stop_controller(self) -> None:
        """Stop slurmctld as an administrator does: it stores its state first."""
        process = self.processes.pop("slurmctld")
        process.terminate()
        process.wait()

    def kill(self, name: str) -> None:
        """Kill the slurmd of a node; its pilots' processes live on."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def command(self, *words: str) -> str:
        """Run one of Slurm's commands as an administrator, and return what it prints."""
        env = {**os.environ, "SLURM_CONF": str(self.conf)}
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    def accounts(self) -> dict[str, float]:
        """Return the seconds that each ended job ran, by its number: Slurm's own record."""
        found = {}
        text = (self.folder / "accounts").read_text(encoding="utf-8")
        for line in text.splitlines():
            fields = dict(piece.split("=", 1) for piece in line.split() if "=" in piece)
            with suppress(KeyError, ValueError):  # it never started
                began, ended = (datetime.fromisoformat(fields[name]) for name in ("StartTime", "EndTime"))
                found[fields["JobId"]] = (ended - began).total_seconds()
        return found

    def take_nodes(self, count: int, user: str = "root") -> str:
        """Submit a job of higher priority of a user that needs so many nodes, and return its number."""
        options = (
            f"--uid={user}",
            f"--chdir={self.folder.anchor}",
            "--parsable",
            "--partition=high",
            f"--nodes={count}",
            "--exclusive",
            "--output=/dev/null",
        )
        return self.command("sbatch", *options, "--export=NIL", "--wrap=exec sleep 600").strip()

    def until_idle(self, count: int) -> None:
        """Return once so many nodes are idle."""
        give_up_s = time.monotonic() + _START_S
        while time.monotonic() < give_up_s:
            try:
                idle = self.command("sinfo", "--noheader", "--partition=low", "--states=idle", "--format=%D")
            except subprocess.CalledProcessError:
                idle = ""
            if idle.strip() == str(count):
                return
            time.sleep(0.1)
        raise TimeoutError(f"{count} nodes of {self.folder} were not idle within {_START_S} s")

    def stop(self) -> None:
        """End all jobs, nodes and the controller. Jobs that Slurm does not end, or not in time, are killed."""
        try:
            if len(self.processes) == self.nodes + 1:
                numbers = self.command("squeue", "--noheader", "--format=%i").split()  # of all users
                if numbers:
                    self.command("scancel", *numbers)
                self.until_idle(self.nodes)
        except (subprocess.SubprocessError, TimeoutError) as error:
            sys.stderr.write(f"{self.folder}: Slurm did not end its jobs, so they are killed: {error}\n")
        finally:
            for process in self.processes.values():
                process.kill()  # nothing of it is kept
                process.wait()
            for left in self.job_processes():
                with suppress(psutil.NoSuchProcess):
                    left.kill()

    def job_processes(self) -> list[psutil.Process]:
        """Return the slurmstepd of each running step, which outlive their slurmd, and all their descendants.

        Each listens at a socket in the spool folder of its node.
        """
        spools = f"{self.folder}/spool."
        found: dict[int, psutil.Process] = {}
        for one in psutil.net_connections("unix"):
            if one.pid is not None and str(one.laddr).startswith(spools):
                with suppress(psutil.NoSuchProcess):
                    step = psutil.Process(one.pid)
                    found |= {each.pid: each for each in (step, *step.children(recursive=True))}
        return list(found.values())

    def _spawn(self, *command: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "SLURM_CONF": str(self.conf)}
        with (self.folder / f"{command[0]}.out").open("ab") as log:
            return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


@contextmanager
def slurm_cluster(folder: Path, *, nodes: int, cpus: int = 2, kill_wait_s: int = 5) -> Iterator[Slurm]:
    """Run a Slurm cluster in a folder."""
    cluster = Slurm(folder, nodes, cpus)
    try:
        cluster.start(kill_wait_s)
        yield cluster
    finally:
        cluster.stop()
