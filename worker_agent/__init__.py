"""The agent: a daemon on a host with slots.

It joins the service, reads commands from its Redis stream, decides what to do (`runs.reconcile`, without
I/O), and reports. The *launcher*, a small child in its own session, starts, reaps and kills processes, and
survives a restart of the agent. All data that must survive a restart is in files under the state folder
(`host.folders`). The agent does not import torch; the launcher does.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("headway")
except PackageNotFoundError:  # a checkout that is not installed
    VERSION = "0+checkout"
