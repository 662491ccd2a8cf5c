"""The launcher: parent process of all ranks of one agent.

It imports torch in advance and forks ranks (a *zygote*). It reaps them and records how they ended. It kills
them when the lease expires, even if the agent is dead. The process is single-threaded and creates no device
context, because a fork is only safe then. It exits when it has no run and no agent is connected.

The ranks die with the launcher: the kernel sends SIGKILL to a rank when the launcher ends (PR_SET_PDEATHSIG).
So no rank ever runs without a process that watches its lease.
"""
