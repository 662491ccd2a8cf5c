"""Comparison of what ranks must have in common before one takes the state of another, with the differences by name.

A description maps the name of each such thing to its value as text.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Mapping, Sequence

from torch import nn
from torch.optim import Optimizer

from headway.errors import HeadwayError
from headway.train.checkpoint.replica import Stateful, kind_of
from headway.train.membership.peers import Peers

Description = Mapping[str, str]

USUAL_COUNTS = "samples of the data"
"""Name of the number by which ranks compare data that are not shards."""
_NAMED = 3
"""Number of differences that a message names."""


class MemberDiffers(HeadwayError):
    """Raised on a rank that cannot take the state of the ranks that train, because it has made something else."""

    code = "MEMBER_DIFFERS"


def describe_objects(objects: Sequence[Stateful], *, trainable: bool = False) -> dict[str, str]:
    """Return the classes of the objects and the tensors of models.

    `trainable`: also which parameters train.
    """
    found = {}
    for number, one in enumerate(objects):
        found[f"the class of object {number} of prepare()"] = kind_of(one)
        if isinstance(one, nn.Module):
            for name, tensor in (*one.named_parameters(), *one.named_buffers()):
                found[f"object {number}, {name}"] = f"{tuple(tensor.shape)} {tensor.dtype}"
            if trainable:
                parameters = one.named_parameters()
                found |= {
                    f"object {number}, requires_grad of {name}": str(its.requires_grad)
                    for name, its in parameters
                }
    return found


def groups_of(objects: Sequence[Stateful], *, sizes: bool = True) -> dict[str, str]:
    """Return the groups of parameters of each optimizer, which a script may add while it trains.

    `sizes`: also the number of parameters in each, which differs between the stages of a pipeline.
    """
    return {
        f"parameter groups of {kind_of(one)} (object {number})": _groups_text(one.param_groups, sizes=sizes)
        for number, one in enumerate(objects)
        if isinstance(one, Optimizer)
    }


def _groups_text(groups: Sequence[Mapping[str, Sequence[object]]], *, sizes: bool) -> str:
    of = ", ".join(str(len(one["params"])) for one in groups)
    return f"{len(groups)} (of {of} parameters)" if sizes else str(len(groups))


def digest_of(description: Description) -> int:
    """Return a number that is equal for equal descriptions."""
    return zlib.crc32(repr(sorted(description.items())).encode())


def differences(first: Description, second: Description, *, where: tuple[str, str]) -> str:
    """Return what differs between two descriptions, from two places that `where` names; empty if nothing does."""
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    texts = [
        f"{name}: {first.get(name, 'none')} {where[0]}, {second.get(name, 'none')} {where[1]}"
        for name in names[:_NAMED]
    ]
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return "; ".join(texts + more)


def compare(peers: Peers, mine: Description) -> str:
    """Return what differs between rank 0 and the first rank unlike it, the same on every rank; empty if nothing does.

    Raises:
        PeersLost: a peer is gone.
    """
    digests = [digest for (digest,) in peers.gather(digest_of(mine))]
    other = next((rank for rank, digest in enumerate(digests) if digest != digests[0]), None)
    if other is None:
        return ""
    packed = pickle.dumps(dict(mine))
    first, second = (pickle.loads(peers.bytes_from(rank, packed)) for rank in (0, other))  # noqa: S301  # from peers of the job
    return differences(first, second, where=("on rank 0", f"on rank {other}"))
