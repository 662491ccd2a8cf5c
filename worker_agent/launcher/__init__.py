"""The launcher: parent of all ranks of one agent, in a process of its own.

It has torch preloaded and forks ranks (a *zygote*), reaps them and writes down how they ended, and kills
them when the lease runs out, whether the agent lives or not. It is single-threaded and makes no device
context: a fork is only safe then. It ends when it has nothing to keep and no agent talks to it.

It dies with its ranks: a rank gets SIGKILL when the launcher is gone (PR_SET_PDEATHSIG), so that no rank
is ever without somebody who watches its lease.
"""
