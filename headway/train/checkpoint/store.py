"""Checkpoints in storage: one folder each, with a manifest written last and checksums.

    <generation>-<epoch>-<samples in it>[-<again>]/<rank>-<n>.safetensors
                                                   index.json
                                                   manifest.json

A folder without a manifest is not a checkpoint. A checkpoint whose parts differ from their checksums is
skipped in favour of the one before. The order is by (generation, epoch, samples, again). No file is ever
written twice.

    begin(state, position, samples=…)   copies the state; a thread writes it while training continues
    poll(), wait()                      the result: `Saved`, `Failed`, or None while there is none
    read()                              the newest complete checkpoint, in host memory
    load(state, group)                  the same, into sharded tensors

A state is nested dictionaries and lists of tensors and plain values. If its tensors are sharded (`DTensor`),
every rank calls `begin` and `load` with a process group that nothing else uses. Any number of ranks can load
the result. A replicated state is saved by one rank alone, which waits for no other.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Mapping
from concurrent import futures
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from headway.contract.manifest import MANIFEST, CheckpointPart, Manifest, Name, complete, names, surplus
from headway.storage.stores import Storage
from headway.train.checkpoint.host_copy import HostCopy
from headway.train.checkpoint.parts import get
from headway.train.checkpoint.schedule import Schedule
from headway.train.checkpoint.stages import join_stages
from headway.train.checkpoint.staging import is_sharded, split, tensors_of
from headway.train.checkpoint.threads import for_each
from headway.train.collectives.losses import GROUP_ERRORS, is_loss
from headway.train.data.position import Position
from headway.train.host.output import warn

if TYPE_CHECKING:
    # Functions that use it import it, because the import takes half a second and only checkpoints need it.
    from headway.train.checkpoint.sharded import Contents

__all__ = ["Checkpoints", "Failed", "Fenced", "LoadedCheckpoint", "Saved", "Schedule"]


class Fenced(RuntimeError):
    """Raised when a newer generation of the job has written checkpoints: this process must end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A complete checkpoint, finished `total_s` after its start, of which `save_s` paused training."""

    uri: str
    position: Position
    samples: int
    size_bytes: int
    save_s: float
    total_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A failed save of a checkpoint. Earlier checkpoints are unchanged."""

    samples: int
    reason: str


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A checkpoint that was read and verified."""

    name: Name
    state: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _Save:
    """The inputs of one save, for the thread that writes it. `generation` is that of its start."""

    contents: Contents
    position: Position
    samples: int
    generation: int
    group: dist.ProcessGroup | None
    rank_alone: int | None
    began: float
    save_s: float
    urgent: threading.Event

    @property
    def is_main(self) -> bool:
        return self.group is None or dist.get_rank(self.group) == 0


@dataclass
class Checkpoints:
    """The checkpoints of one job, as one of its ranks sees them. Its methods are for one thread.

    `generation` may be set at any time; a save in progress keeps the number that it started with. `reported` is the
    newest checkpoint known to be complete. It is read even if the storage's list lacks it, because lists of some
    stores lag behind their objects.
    """

    storage: Storage
    generation: int
    keep: int
    reported: Name | None = None
    _host: HostCopy = field(init=False, default_factory=HostCopy)
    _worker: futures.ThreadPoolExecutor = field(
        init=False, default_factory=partial(futures.ThreadPoolExecutor, 1, "headway-checkpoint")
    )
    _warming: futures.Future[None] | None = field(init=False, default=None)
    _running: futures.Future[Saved | Failed] | None = field(init=False, default=None)
    _urgent: threading.Event = field(init=False, default_factory=threading.Event)
    """Set when training waits for the save in progress."""
    _ended: deque[futures.Future[Saved | Failed]] = field(init=False, default_factory=deque)

    # Saving

    def warm(self, state: Mapping[str, Any]) -> None:
        """Prepare memory, modules and a connection in the background, so that the first save is fast.

        Raises:
            TypeError: as `begin`.
        """
        _, tensors = split(state)
        self._warming = self._worker.submit(self._warm, tensors)

    def begin(
        self,
        state: Mapping[str, Any],
        position: Position,
        *,
        samples: int,
        group: dist.ProcessGroup | None = None,
        stages: int = 1,
        rank_alone: int | None = None,
    ) -> bool:
        """Copy the state to host memory and start writing it. Blocks only for the copy.

        `samples` is the number committed since the job began. The ranks of a group have `stages` parts of the model, in their
        order. `rank_alone` is this rank's number if other ranks
        may save at this position without its knowledge. Until `wait` is called, one thread writes. The result is
        False, with a line on stderr, while another save is in progress. With a group the call waits for that save instead, so that all ranks do
        the same.

        Raises:
            TypeError: the state holds objects that a checkpoint cannot contain.
            ValueError: its tensors are sharded, and there is no group with which to save them.
        """
        if group is not None:
            self._settle()
        elif self.busy:
            warn(f"no checkpoint at {samples} samples: the one before is still being written")
            return False
        self._collect()
        began = time.monotonic()
        if self._warming is not None:
            self._warming.result()  # it uses the same memory
        tree, tensors = split(state)
        if group is None and is_sharded(tensors):
            raise ValueError("a sharded state is saved by all ranks: give begin() their process group")
        from headway.train.checkpoint.sharded import Contents, tree_name  # noqa: PLC0415

        rank, ranks = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
        stage, place = divmod(rank, ranks // stages)
        trees = {} if place else {tree_name(stage): tree}
        contents = Contents(tensors, self._host.take(tensors), trees)
        save = _Save(
            contents=contents,
            position=position,
            samples=samples,
            generation=self.generation,
            group=group,
            rank_alone=rank_alone,
            began=began,
            save_s=time.monotonic() - began,
            urgent=(urgent := threading.Event()),
        )
        self._urgent = urgent
        self._running = self._worker.submit(self._save, save)
        return True

    @property
    def busy(self) -> bool:
        """True while a save is in progress."""
        return self._running is not None and not self._running.done()

    def poll(self) -> Saved | Failed | None:
        """Return the result of the oldest save that ended and was not returned yet; None if there is none.

        Raises:
            Fenced: a newer generation has written checkpoints, so this one was not saved.
        """
        self._collect()
        return self._ended.popleft().result() if self._ended else None

    def wait(self) -> Saved | Failed | None:
        """Wait until no save is in progress, and return the next result as `poll` does.

        Raises:
            Fenced: as `poll`.
        """
        self._settle()
        return self.poll()

    def _settle(self) -> None:
        self._urgent.set()
        if self._running is not None:
            futures.wait([self._running])

    def _collect(self) -> None:
        if self._running is not None and self._running.done():
            self._ended.append(self._running)
            self._running = None

    # Work of the thread

    def _warm(self, tensors: Mapping[str, torch.Tensor]) -> None:
        import headway.train.checkpoint.sharded  # noqa: F401, PLC0415  # loads torch.distributed.checkpoint

        self._host.reserve(tensors)
        with suppress(OSError):  # the save will report it
            self.storage.keys()

    def _save(self, save: _Save) -> Saved | Failed:
        from headway.train.checkpoint.sharded import from_first, write  # noqa: PLC0415

        folder: str | None = None
        manifests: list[Manifest] = []
        try:
            choose = partial(self._new_folder, save)
            folder = choose() if save.group is None else from_first(save.group, choose)
            seal = partial(self._seal, save, folder, manifests)
            write(self.storage, folder, save.contents, seal=seal, group=save.group, urgent=save.urgent)
        except OSError as error:
            return Failed(samples=save.samples, reason=str(error))
        except GROUP_ERRORS as error:
            if save.group is None or isinstance(error, Fenced) or not is_loss(error):
                raise
            return Failed(samples=save.samples, reason=f"a peer is gone: {error}")
        finally:
            if save.is_main and folder is not None and not manifests:
                self._remove(folder)
        # A rank that saves alone prunes nothing: a folder without a manifest may be another rank's save.
        if save.is_main and save.rank_alone is None:
            self._prune(save)
        if manifests:
            self.reported = Name.parse(folder)
        return Saved(
            uri=f"{self.storage.uri}/{folder}",
            position=save.position,
            samples=save.samples,
            size_bytes=sum(manifest.size_bytes for manifest in manifests),
            save_s=save.save_s,
            total_s=time.monotonic() - save.began,
        )

    def _new_folder(self, save: _Save) -> str:
        keys = self.storage.keys()
        self._refuse_stale(keys, save.generation)
        name = Name(save.generation, save.position.epoch, save.position.samples)
        return str(name.unused(keys) if save.rank_alone is None else name.of_rank(save.rank_alone))

    def _seal(
        self, save: _Save, folder: str, manifests: list[Manifest], stored: list[CheckpointPart]
    ) -> None:
        """Write the manifest, which completes the checkpoint, after all parts are stored."""
        self._refuse_stale(self.storage.keys(), save.generation)
        manifest = Manifest(
            generation=save.generation,
            epoch=save.position.epoch,
            samples_in_epoch=save.position.samples,
            samples=save.samples,
            parts=tuple(stored),
        )
        self.storage.put(f"{folder}/{MANIFEST}", manifest.to_text())
        manifests.append(manifest)

    def _prune(self, save: _Save) -> None:
        """Delete checkpoints beyond `keep`. A failure costs space, and the next save tries again."""
        try:
            for key in surplus(self.storage.keys(), generation=save.generation, keep=self.keep):
                self.storage.delete(key)
        except OSError as error:
            warn(f"old checkpoints could not be deleted: {error}")

    def _remove(self, folder: str) -> None:
        """Delete the objects of a failed save. A later pruning deletes the objects that remain."""
        with suppress(OSError):
            for key in self.storage.keys():  # noqa: SIM118  # not a dictionary
                if key.startswith(f"{folder}/"):
                    self.storage.delete(key)

    # Reading

    def read(self) -> LoadedCheckpoint | None:
        """Return the newest complete checkpoint, or None. Skipped checkpoints are named on stderr.

        Raises:
            Fenced: a newer generation has written.
            OSError: the storage does not answer; starting without a checkpoint would be wrong then.
            TypeError: every checkpoint holds values that only code can read; starting without one would be wrong, too.
        """
        from headway.train.checkpoint.sharded import read  # noqa: PLC0415

        tried: set[Name] = set()
        unreadable: TypeError | None = None
        while (name := self._newest(tried)) is not None:
            tried.add(name)
            try:
                manifest = self._manifest(name)
                trees, tensors = read(self.storage, str(name), manifest.parts, into=None, group=None)
                return LoadedCheckpoint(name, join_stages(trees, tensors))
            except (FileNotFoundError, ValueError, TypeError) as damage:
                unreadable = damage if isinstance(damage, TypeError) else unreadable
                self._report_skipped(name, damage)
        if unreadable is not None:
            raise unreadable
        return None

    def load(self, state: Mapping[str, Any], group: dist.ProcessGroup) -> LoadedCheckpoint | None:
        """Load the newest complete checkpoint into the tensors of `state`, on all ranks of a group.

        The state that it returns has no tensors but these, which may be those of one pipeline stage.

        Raises:
            Fenced, OSError: as `read`; the tensors may be half loaded then.
            LookupError: the checkpoint has other tensors than the states of all ranks.
            TypeError: as `read`.
        """
        from headway.train.checkpoint.sharded import from_first, read  # noqa: PLC0415

        into = tensors_of(state)
        tried: set[Name] = set()
        unreadable: TypeError | None = None
        while (name := from_first(group, partial(self._newest, tried))) is not None:
            tried.add(name)
            damage = self._verify(name, group)
            if damage is None:
                manifest = self._manifest(name)
                trees, _ = read(self.storage, str(name), manifest.parts, into=into, group=group)
                try:
                    return LoadedCheckpoint(name, join_stages(trees, into[0]))
                except TypeError as error:  # on every rank, because all have read the same trees
                    unreadable, damage = error, str(error)
            if dist.get_rank(group) == 0:
                self._report_skipped(name, damage)
        if unreadable is not None:
            raise unreadable
        return None

    def _newest(self, tried: Collection[Name]) -> Name | None:
        """Return the newest checkpoint not tried yet. List them anew, because a writer may have added or deleted some."""
        keys = self.storage.keys()
        self._refuse_stale(keys, self.generation)
        left = {name for name in names(keys) if name not in tried}
        if self.reported is not None and self.reported.generation <= self.generation:
            left |= {self.reported} - set(tried)
        return max(left, default=None)

    def _manifest(self, name: Name) -> Manifest:
        return Manifest.from_text(self.storage.get(f"{name}/{MANIFEST}"))

    def _verify(self, name: Name, group: dist.ProcessGroup) -> str | None:
        """Return a checkpoint's damage, or None, on all ranks alike. Each rank reads its share of the parts."""
        mine: str | OSError | None = None
        try:
            share = self._manifest(name).parts[dist.get_rank(group) :: dist.get_world_size(group)]
            for_each(partial(self._read_part, name), share)
        except (FileNotFoundError, ValueError) as error:
            mine = str(error)
        except OSError as error:
            mine = error
        verdicts: list[str | OSError | None] = [None] * dist.get_world_size(group)
        dist.all_gather_object(verdicts, mine, group=group)
        for verdict in verdicts:
            if isinstance(verdict, OSError):
                raise verdict
        return next((verdict for verdict in verdicts if isinstance(verdict, str)), None)

    def _read_part(self, name: Name, part: CheckpointPart) -> None:
        get(self.storage, str(name), part)

    def _report_skipped(self, name: Name, damage: object) -> None:
        warn(f"checkpoint {self.storage.uri}/{name} is skipped: {damage}")

    def _refuse_stale(self, keys: Collection[str], generation: int) -> None:
        newer = [name for name in complete(keys) if name.generation > generation]
        if newer:
            raise Fenced(
                f"this process is of generation {generation}, but generation {newer[-1].generation} has "
                f"written checkpoints to {self.storage.uri}; it must not write there and ends"
            )
