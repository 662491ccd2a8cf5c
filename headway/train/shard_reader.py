"""Reader of one shard, which can continue behind a sample, and give samples of a repeated step again."""

from __future__ import annotations

import io
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeAlias

import torch

from headway.train.data.stream_position import OpenShard

OpenShardBy: TypeAlias = Callable[[Any], Iterable[Any]]
"""Function that opens a shard by its name. The result may have `state_dict` and `load_state_dict`."""


class ShardReader:
    """The samples of a shard from a committed position on.

    Samples taken for a step are kept until the step is committed, because it may be repeated.
    """

    def __init__(self, open_shard: OpenShardBy, shard: Any, at: OpenShard) -> None:
        """Open the shard at this position: by the state of an earlier reader, if there is one, and by reading on.

        Raises:
            RuntimeError: the shard ends before this position.
        """
        self._shard = shard
        self._opened = open_shard(shard)
        if at.state is not None:
            state = torch.load(io.BytesIO(at.state), weights_only=True)
            self._opened.load_state_dict(state)  # type: ignore[attr-defined]
        self._samples: Iterator[Any] = iter(self._opened)
        self._read: deque[Any] = deque()
        self._taken = 0
        self._ended = False
        self.committed = at.state_samples
        """Samples of the shard in committed steps."""
        self.seek(at.samples)

    @property
    def position(self) -> int:
        """Samples of the shard in committed steps and in the present one."""
        return self.committed + self._taken

    @property
    def ended(self) -> bool:
        """True if no sample is left."""
        return self._ended and self._taken == len(self._read)

    def take(self, count: int) -> list[Any]:
        """Return the next samples for the present step: `count`, or fewer at the end of the shard."""
        missing = self._taken + count - len(self._read)
        if missing > 0 and not self._ended:
            new = list(islice(self._samples, missing))
            self._ended = len(new) < missing
            self._read.extend(new)
        taken = list(islice(self._read, self._taken, self._taken + count))
        self._taken += len(taken)
        return taken

    def give_back(self, count: int) -> None:
        """Leave the last `count` samples that were taken to the next step."""
        self._taken -= count

    def commit(self) -> None:
        """Forget the samples of the present step, because it is committed."""
        for _ in range(self._taken):
            self._read.popleft()
        self.committed += self._taken
        self._taken = 0

    def rewind(self) -> None:
        """Give the samples of the present step again, because it is repeated."""
        self._taken = 0

    def seek(self, samples: int) -> None:
        """Continue after the first `samples` samples, which are not before the committed ones.

        Raises:
            RuntimeError: the shard ends before.
        """
        self.rewind()
        count = samples - self.committed
        if len(self.take(count)) < count:
            raise RuntimeError(
                f"shard {self._shard!r} ended after {self.position} samples, but {samples} of it were trained; "
                "a shard must give the same samples in the same order whenever it is opened"
            )
        self.commit()

    def state(self) -> bytes | None:
        """Return the reader's state behind the committed samples, encoded; None if it has none, or has read further.

        Raises:
            TypeError: a checkpoint cannot hold the state.
        """
        if not hasattr(self._opened, "state_dict") or self._read or self._ended or not self.committed:
            return None
        encoded = io.BytesIO()
        try:
            torch.save(self._opened.state_dict(), encoded)
            torch.load(io.BytesIO(encoded.getvalue()), weights_only=True)
        except (pickle.PickleError, AttributeError) as error:
            raise TypeError(
                f"a checkpoint cannot hold the state of the reader of shard {self._shard!r}; make its state_dict() "
                f"of tensors, numbers, text, lists and dictionaries only ({error})"
            ) from error
        return encoded.getvalue()
