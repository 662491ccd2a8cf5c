"""State from one rank to another: whatever its type and shape, it arrives as it was."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from headway.train.collectives.devices import TorchDevice
from headway.train.state import transfer as handover
from headway.train.state.transfer import signature, transfer_state

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.bool,
    torch.int8,
    torch.uint8,
    torch.int64,
    torch.complex64,
]


class Wire:
    """Stands for the peers of one hand-over: what the source sends the receivers get, one after another."""

    def __init__(self, world_size: int) -> None:
        self.rank = 0
        self.device = TorchDevice()
        self._world_size = world_size
        self._sent: deque[Any] = deque()
        self._read: dict[int, deque[Any]] = {}

    def be(self, rank: int) -> Wire:
        """From now on speak as this rank, from the beginning."""
        self.rank = rank
        self._read[rank] = deque(self._sent)
        return self

    def group_of(self, ranks: Sequence[int]) -> object | None:
        return "group" if self.rank in ranks else None

    def bytes_from(self, source: int, data: bytes, group: object) -> bytes:
        if self.rank == source:
            self._sent.append(data)
            return data
        received: bytes = self._read[self.rank].popleft()
        return received

    def tensors_from(self, source: int, tensors: Sequence[Tensor], group: object) -> None:
        assert all(one.is_contiguous() and one.device.type == "cpu" for one in tensors), (
            "as a collective wants them"
        )
        if self.rank == source:
            self._sent.append([one.clone() for one in tensors])
            return
        sent = self._read[self.rank].popleft()
        assert [(one.shape, one.dtype) for one in sent] == [(one.shape, one.dtype) for one in tensors]
        for mine, one in zip(tensors, sent, strict=True):
            mine.copy_(one)

    def device_tensors_from(self, source: int, receivers: Sequence[int], tensors: Sequence[Tensor]) -> None:
        assert not tensors

    def done(self) -> bool:
        """Return whether every receiver has everything."""
        return not any(self._read[rank] for rank in self._read if rank)


def give(source: Sequence[Any], receiver: Sequence[Any], more: Any = None) -> tuple[Any, int, int]:
    """From one to the other: `more` as it arrives, the bytes sent, and those received."""
    wire: Any = Wire(2)
    kept, sent = transfer_state(source, more, peers=wire.be(0), source=0, receivers=[1])
    assert kept is more
    arrived, received = transfer_state(receiver, None, peers=wire.be(1), source=0, receivers=[1])
    assert wire.done()
    return arrived, sent, received


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Equal to the last bit, NaN among it."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    if not one.numel():
        return True
    raw = [
        tensor.detach().clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)
        for tensor in (one, other)
    ]
    return torch.equal(raw[0], raw[1])


class Parts:
    """An object with any state, as a script may give to `prepare`."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def made(shape: list[int], dtype: torch.dtype, seed: int, laid: str) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=generator).to(dtype)
    if laid == "transposed" and len(shape) > 1:
        return raw.transpose(0, -1)
    if laid == "strided" and shape and shape[0] > 1:
        return raw[::2]
    if laid == "offset" and shape and shape[0] > 1:
        return raw[1:]
    return raw


tensors = st.builds(
    made,
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 1000),
    st.sampled_from(["plain", "transposed", "strided", "offset"]),
)
plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
)
states = st.recursive(
    tensors | plain,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and same_bits(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and one == other


@given(states)
def test_any_state_arrives_as_it_was(state: Any) -> None:
    receiver = Parts()
    arrived, sent, received = give([Parts({"state": state})], [receiver], more=("place", state))
    assert equal(receiver.state, {"state": state})
    assert equal(arrived, ("place", state))
    assert received > sent >= 0


@given(st.lists(tensors, max_size=6))
def test_what_is_packed_can_be_unpacked(held: list[Tensor]) -> None:
    value = {"held": held, "first": held[:1], "name": "x"}
    found: list[Tensor] = []
    contents = handover._pack(value, found)
    assert equal(handover._unpack(contents, found), value)
    assert len(contents) < 2000, "tensors are beside it, not in it"


def test_one_element_may_have_any_stride() -> None:
    """Then it counts as contiguous, and still cannot be viewed as bytes."""
    receiver = Parts()
    give([Parts({"a": torch.arange(2.0)[1::2], "b": torch.ones(4, 4)[:1, ::4]})], [receiver])
    assert equal(receiver.state, {"a": torch.tensor([1.0]), "b": torch.ones(1, 1)})


def test_a_tensor_that_is_held_twice_stays_one() -> None:
    shared = torch.arange(3.0)
    receiver = Parts()
    give([Parts({"a": shared, "b": shared})], [receiver])
    assert torch.equal(receiver.state["a"], shared)
    assert receiver.state["b"] is receiver.state["a"]


@pytest.mark.parametrize("elements", [(1 << 16) - 1, 1 << 16, (1 << 16) + 1])
@pytest.mark.parametrize("laid", ["plain", "transposed"])
def test_large_tensors_travel_alone(elements: int, laid: str) -> None:
    """On both sides of the size from which they do."""
    value = torch.arange(2 * elements, dtype=torch.float32).reshape(2, elements)
    model, other = nn.Linear(1, 1), nn.Linear(1, 1)
    for one, content in ((model, value), (other, torch.zeros_like(value))):
        one.weight = nn.Parameter(content.t() if laid == "transposed" else content)
    _, sent, _ = give([model], [other])
    assert torch.equal(model.weight, other.weight)
    assert sent == value.nbytes + 4


class Versatile(nn.Module):
    """Every kind of thing that a model holds."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(3, 2)
        self.tied = nn.Linear(3, 2)
        self.tied.weight = self.linear.weight
        self.frozen = nn.Parameter(torch.rand(2), requires_grad=False)
        self.brief = nn.Parameter(torch.rand(5).to(torch.bfloat16))
        self.scalar = nn.Parameter(torch.rand(()))
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("mask", torch.rand(4) > 0.5)
        self.register_buffer("empty", torch.empty(0, 3))
        self.register_buffer("unsaved", torch.rand(2), persistent=False)
        self.told: Any = seed

    def get_extra_state(self) -> Any:
        return {"told": self.told}

    def set_extra_state(self, state: Any) -> None:
        self.told = state["told"]


def test_a_model_is_filled_where_it_is() -> None:
    source, receiver = Versatile(1), Versatile(2)
    source.norm(torch.rand(4, 3))
    memory = {name: one.data_ptr() for name, one in receiver.named_parameters()}
    give([source], [receiver])
    for (name, one), other in zip(source.named_parameters(), receiver.parameters(), strict=True):
        assert same_bits(one, other), name
    for (name, one), other in zip(source.named_buffers(), receiver.buffers(), strict=True):
        assert same_bits(one, other), name
    assert receiver.told == 1
    assert receiver.tied.weight is receiver.linear.weight
    assert {name: one.data_ptr() for name, one in receiver.named_parameters()} == memory


def optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    parameters = list(model.parameters())
    return [
        torch.optim.SGD(parameters, lr=0.1),
        torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
        torch.optim.AdamW(parameters, lr=0.1, amsgrad=True),
        torch.optim.AdamW(parameters, lr=torch.tensor(0.1)),
        torch.optim.Adagrad(parameters, lr=0.1),
        torch.optim.RMSprop(
            [{"params": parameters[:1], "lr": 0.5}, {"params": parameters[1:]}], centered=True
        ),
        torch.optim.LBFGS(parameters),
    ]


@pytest.mark.parametrize("kind", range(7))
@pytest.mark.parametrize("steps_of_the_receiver", [0, 3])
def test_an_optimizer_goes_on_as_the_source_does(kind: int, steps_of_the_receiver: int) -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
        def closure() -> float:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss.item()

        optimizer.step(closure)

    source, receiver = nn.Linear(3, 2), nn.Linear(3, 2)
    mine, its = optimizers(source)[kind], optimizers(receiver)[kind]
    schedule, other = (torch.optim.lr_scheduler.StepLR(one, 2, 0.5) for one in (mine, its))
    data = torch.rand(8, 4, 3)
    for x in data[:4]:
        step(source, mine, x)
        schedule.step()
    for x in data[:steps_of_the_receiver]:
        step(receiver, its, x)
    give([source, mine, schedule], [receiver, its, other])
    for x in data[4:]:
        for model, optimizer, one in ((source, mine, schedule), (receiver, its, other)):
            step(model, optimizer, x)
            one.step()
    assert torch.equal(source.weight, receiver.weight)
    assert torch.equal(source.bias, receiver.bias)
    assert other.get_last_lr() == schedule.get_last_lr()


def test_one_that_is_neither_source_nor_receiver_is_left_alone() -> None:
    wire: Any = Wire(3)
    model = nn.Linear(2, 2)
    before = model.weight.clone()
    assert transfer_state([model], "mine", peers=wire.be(2), source=0, receivers=[1]) == ("mine", 0)
    assert torch.equal(model.weight, before)


def test_tied_parameters_are_sent_once_and_fill_those_that_are_not_tied() -> None:
    """The memory is one, and the parameters are two: a script may tie them so after it has loaded one."""
    source, receiver, tied = (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)) for _ in range(3))
    for model in (source, tied):
        model[1].weight.data = model[0].weight.data
    for other in (receiver, tied):
        _, sent, _ = give([source], [other])
        assert sent == (9 + 3 + 3) * 4
        assert all(map(same_bits, source.parameters(), other.parameters()))
    assert tied[1].weight.data_ptr() == tied[0].weight.data_ptr()
    assert receiver[1].weight.data_ptr() != receiver[0].weight.data_ptr()


def test_several_receivers_get_the_same() -> None:
    wire: Any = Wire(3)
    source, *receivers = (Versatile(seed) for seed in range(3))
    transfer_state([source], 7, peers=wire.be(0), source=0, receivers=[1, 2])
    for rank, receiver in enumerate(receivers, start=1):
        assert transfer_state([receiver], None, peers=wire.be(rank), source=0, receivers=[1, 2])[0] == 7
        assert all(map(same_bits, source.parameters(), receiver.parameters()))
    assert wire.done()


def test_models_that_fit_one_another_have_one_signature() -> None:
    assert signature([Versatile(1)]) == signature([Versatile(2)])
    assert 0 <= signature([Versatile(1)]) < 2**63, "it is gathered as a number"
    model = nn.Linear(3, 2)
    others = [
        nn.Linear(3, 2, bias=False),
        nn.Linear(2, 3),
        nn.Linear(3, 2).double(),
        nn.Sequential(nn.Linear(3, 2)),
        Versatile(1),
    ]
    assert len({signature([one]) for one in (model, *others)}) == 6
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert signature([model, optimizer]) != signature([model])
    assert signature([model, optimizer]) != signature([model, torch.optim.Adam(model.parameters())])


def test_nothing_but_tensors_goes_around_the_pickle() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        give([Parts({"f": lambda: None})], [Parts()])
