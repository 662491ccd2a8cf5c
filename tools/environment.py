"""docs/reference/environment.md: the environment of a rank, created by the agent's own function."""

from __future__ import annotations

from pathlib import Path

from headway.contract import runtime
from headway.contract.agents import RankSlot, RunCommand
from headway.contract.spec_after import files_variable
from headway.contract.spec_parameters import variable_of
from tools.settings import Undocumented
from tools.variables import RANK
from worker_agent.runs.environment import rank_env

_COMMAND = RunCommand(
    command_id="c1",
    job_id="j1m80qv0bbpgxqs5hgn4",
    job_name="digits",
    generation=3,
    attempt=1,
    restart_count=0,
    run="python digits.py",
    bundle=None,
    env={},
    ranks=[RankSlot(rank=2, local_rank=0, slot=0), RankSlot(rank=3, local_rank=1, slot=1)],
    world_size=4,
    node_rank=1,
    node_count=2,
    master_addr="10.0.0.7",
    master_port=20001,
    hosts_store=False,
    joins=True,
    global_batch=256,
    start_global_batch=512,
    max_global_batch=1024,
    max_local_batch=64,
    lr_rule="adascale",
    balance="off",
    speeds=[4.0, 4.0, 1.0, 1.0],
    checkpoint_uri="s3://bucket/headway/checkpoints/j1m80qv0bbpgxqs5hgn4",
    checkpoint_every_s=300,
    checkpoint_keep=3,
    grace_s=60,
)
"""Command for the second of two hosts with two ranks each, with a value for every field that sets a variable."""


def page() -> str:
    """Return the page.

    Raises:
        Undocumented: a variable has no meaning, or a meaning has no variable.
    """
    env = rank_env(
        _COMMAND,
        _COMMAND.ranks[1],
        base={
            runtime.ENV_OUTPUT_DIR: "/var/lib/headway/…",
            files_variable("prep"): "/var/lib/headway/…",
            variable_of("lr"): "0.1",
        },
        control=Path("/var/lib/headway/…"),
        devices="GPU-5f2c…,GPU-91aa…",
        threads=4,
        agent_keeps_store=True,
    )
    names = {value for name, value in vars(runtime).items() if name.startswith("ENV_")} | env.keys()
    if wrong := sorted(names ^ RANK.keys()):
        raise Undocumented(
            f"tools/variables.py: RANK differs from the variables of ranks in {', '.join(wrong)}."
        )
    rows = [f"- `{name}`{_shown(env.get(name))}: {means}" for name, means in RANK.items()]
    return "\n".join([_LEAD, *rows, "", _TAIL])


def _shown(value: str | None) -> str:
    return f" (`{value}`)" if value else ""


_LEAD = """# Environment of a rank

Every process of a job gets all variables of `torchrun`, so its scripts run unchanged, and Headway's own. `env` and `secrets` of the job file
add to them and override only the two that say so. In brackets: rank 3 of four on two hosts.
"""

_TAIL = """From the agent's environment a rank gets `PATH`, locale (`LANG`, `LC_*`, `TZ`), `LD_LIBRARY_PATH`, `VIRTUAL_ENV`, `CONDA_PREFIX`, `SSL_CERT_*`, `NCCL_*`, `GLOO_*`,
`UCX_*`, `FI_*`, `CUDA_*`, `NVIDIA_*`, and the variables of `headway agent --pass-env`. `HOME` and `TMPDIR` are folders of the job. A rank gets no credential of
the service. Headway's library reads none of `PET_*`.
"""
