"""Workers of a `DataLoader`, which end with their rank: a forked one keeps the rank's connections open, so peers would notice its loss late."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

_PR_SET_PDEATHSIG = 1


class EndWithRank:
    """Function for the start of a worker, which then calls the one of the script, if there is one.

    The kernel kills the worker when the thread that started it ends, so use it for workers that the main thread starts. Torch's
    own check takes five seconds, and none takes place while the dataset reads a sample.
    """

    def __init__(self, after: Callable[[int], None] | None) -> None:
        self.after = after
        self._rank_pid = os.getpid()

    def __call__(self, worker: int) -> None:
        """Prepare this process, a worker of this number."""
        # The parent of a worker that a fork server started is the server, which holds no connections.
        if sys.platform == "linux" and os.getppid() == self._rank_pid:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != self._rank_pid:
                os._exit(1)  # the rank ended before the call
        if self.after is not None:
            self.after(worker)


def end_with_rank(loader: DataLoader[Any]) -> None:
    """Have the workers that this thread starts for the loader end with this process. Only those of the main thread do."""
    present = loader.worker_init_fn
    own = present.after if isinstance(present, EndWithRank) else present
    in_main = threading.current_thread() is threading.main_thread()
    loader.worker_init_fn = EndWithRank(own) if in_main else own
