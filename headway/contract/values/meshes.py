"""Mesh of the ranks of a sharded model. Standard library only, because every rank reads it."""

from __future__ import annotations

from dataclasses import dataclass

PP, REPLICATE, FSDP, TP = "pp", "replicate", "fsdp", "tp"
DIMENSIONS = (PP, REPLICATE, FSDP, TP)
"""Names of the mesh dimensions in the order of ranks.

The ranks of a `tp` group are consecutive, as are those of a pipeline stage, which exchange more bytes than stages do.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshShape:
    """Number of ranks in each mesh dimension.

    `pp` stages have a part of the layers each. `fsdp` ranks divide the parameters of a stage and `replicate` such groups hold
    equal shards. The `tp` ranks of a group divide the computation. A pipeline has `tp` ranks of each stage, which take the same
    samples; without stages it is a `tp` group.

    Raises:
        ValueError: a number is below 1.
    """

    pp: int = 1
    replicate: int = 1
    fsdp: int = 1
    tp: int = 1

    def __post_init__(self) -> None:
        if min(self.sizes) < 1:
            raise ValueError(f"the mesh is {self}; every dimension must be a whole number of at least 1")

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Ranks by dimension, in the order of `DIMENSIONS`."""
        return self.pp, self.replicate, self.fsdp, self.tp

    @property
    def size(self) -> int:
        """Number of ranks in the mesh."""
        return self.data * self.pipeline

    @property
    def data(self) -> int:
        """Number of pipelines, which divide the samples of a step."""
        return self.replicate * self.fsdp

    @property
    def pipeline(self) -> int:
        """Number of ranks in a pipeline."""
        return self.pp * self.tp

    @property
    def has_copies(self) -> bool:
        """True if replicas can take over for a lost rank. Pipeline stages do not go on without a rank."""
        return self.replicate > 1 and self.pp == 1

    @property
    def leaders(self) -> slice:
        """The first rank of each pipeline, in the order of pipelines."""
        return slice(0, self.data * self.tp, self.tp)

    def data_rank(self, rank: int) -> int:
        """Return the number of this rank's pipeline among those that divide the samples."""
        return rank // self.tp % self.data

    def stage(self, rank: int) -> int:
        """Return the number of this rank's stage."""
        return rank // (self.data * self.tp)

    def part(self, rank: int) -> int:
        """Return the number of the part of the model that this rank holds; its replicas have the same number."""
        parts = self.fsdp * self.tp
        return self.stage(rank) * parts + rank % parts

    def position(self, rank: int) -> int:
        """Return the number of this rank in its pipeline."""
        return self.stage(rank) * self.tp + rank % self.tp

    def rank_at(self, data_rank: int, position: int) -> int:
        """Return the rank with this number in pipeline `data_rank`."""
        stage, place = divmod(position, self.tp)
        return (stage * self.data + data_rank) * self.tp + place

    def __str__(self) -> str:
        """Return the mesh as text, from which `mesh_of` reads it. `pp` is left out without stages."""
        sizes = zip(DIMENSIONS, self.sizes, strict=True)
        return ",".join(f"{name}={size}" for name, size in sizes if name != PP or size > 1)


def mesh_of(text: str) -> MeshShape:
    """Return the mesh in a text such as `fsdp=2,tp=2`. A dimension that is left out has the size 1.

    Raises:
        ValueError: the text is not a mesh.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.strip().partition("=")
        if name not in DIMENSIONS or name in sizes or not size.isdecimal():
            raise ValueError(
                f"{text[:80]!r} is not a mesh; write sizes of {', '.join(DIMENSIONS)}, as in fsdp=2,tp=2"
            )
        sizes[name] = int(size)
    return MeshShape(**sizes)
