"""The agent: a daemon on a host with slots.

It joins the service, reads commands from its Redis stream, decides what to do (`reconcile`, pure), and
reports. Processes are started, waited for and killed by the *launcher*, a small child in a session of
its own that outlives a restart of the agent. Everything that must outlive one is a file under the state
folder (`folders`). The agent imports no torch; the launcher does.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("headway")
except PackageNotFoundError:  # run from a checkout that is not installed
    VERSION = "0+checkout"
