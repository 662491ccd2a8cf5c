"""Gradients of divided batches, and the model as the script trains it."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from headway.train.collectives.gloo import Gloo
from headway.train.data.position import divide
from headway.train.gradients.averaging import Gradients
from headway.train.gradients.module import ElasticModule
from headway.train.gradients.schedule import OncePerBatch
from headway.train.gradients.stepping import step_once_per_batch
from headway.train.membership.peers import Peers

CPU = torch.device("cpu")
Body = Callable[[torch.optim.Optimizer, Callable[[], torch.Tensor]], None]


def zero_first(optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor]) -> None:
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()


def zero_last(optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor]) -> None:
    loss().backward()
    optimizer.step()
    optimizer.zero_grad()


def with_a_closure(optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor]) -> None:
    def closure() -> float:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value.item()

    optimizer.step(closure)


def trained(body: Body, parts: int, *, steps: int = 3, samples: int = 11) -> torch.Tensor:
    """The parameters after some steps of `body` over micro-batches in so many parts."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1).double()
    x, y = torch.randn(steps, samples, 4).double(), torch.randn(steps, samples, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    gradients = Gradients(model, device=CPU)
    step_once_per_batch(optimizer, gradients)
    for step in range(steps):
        micro_batches = divide(range(samples), (1,) * parts)
        for number, part in enumerate(micro_batches):
            gradients.begin(
                len(part), global_batch=samples, first=number == 0, last=number == len(micro_batches) - 1
            )
            chosen = slice(part.start, part.stop)
            body(optimizer, lambda: (model(x[step, chosen]) - y[step, chosen]).square().mean())  # noqa: B023
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("body", [zero_first, zero_last])
@pytest.mark.parametrize("parts", [2, 3, 4, 11])
def test_accumulating_over_uneven_parts_is_the_step_of_the_whole_batch(body: Body, parts: int) -> None:
    torch.testing.assert_close(trained(body, parts), trained(body, 1), rtol=1e-12, atol=1e-12)


def test_a_closure_accumulates_as_well() -> None:
    torch.testing.assert_close(trained(with_a_closure, 1), trained(zero_first, 1), rtol=0, atol=0)
    torch.testing.assert_close(trained(with_a_closure, 3), trained(zero_first, 1), rtol=1e-12, atol=1e-12)


def test_gradients_are_complete_before_the_step_so_that_they_can_be_clipped() -> None:
    model = nn.Linear(1, 1, bias=False)
    gradients = Gradients(model, device=CPU)
    for number, size in enumerate((2, 1)):
        gradients.begin(size, global_batch=3, first=number == 0, last=number == 1)
        assert gradients.accumulating == (number == 0)
        model(torch.ones(size, 1)).mean().backward()
    assert model.weight.grad is not None
    assert model.weight.grad.item() == pytest.approx(1.0)


@pytest.mark.parametrize("backward", ["once", "for each output"])
@pytest.mark.parametrize("reached_in", [{0}, {1}, {0, 1, 2}])
def test_parameter_that_some_micro_batches_do_not_reach_has_the_gradient_of_the_whole_batch(
    backward: str, reached_in: set[int]
) -> None:
    used, branch = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    gradients = Gradients(nn.ModuleList([used, branch]), device=CPU)
    for number, size in enumerate((2, 3, 1)):
        gradients.begin(size, global_batch=6, first=number == 0, last=number == 2)
        rows = torch.ones(size, 1)
        losses = [used(rows).mean()]
        if number in reached_in:
            losses += [branch(rows).mean(), used(rows).mean()]
        for one in [sum(losses)] if backward == "once" else losses:
            one.backward()
    assert used.weight.grad is not None
    assert branch.weight.grad is not None
    reached = sum((2, 3, 1)[number] for number in reached_in) / 6
    assert branch.weight.grad.item() == pytest.approx(reached)
    assert used.weight.grad.item() == pytest.approx(1 + reached)


class Grown(nn.Module):
    """A layer whose body a script freezes, and that gets an adapter later."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.adapter = nn.Linear(4, 1).double(), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.adapter(self.body(x))  # type: ignore[no-any-return]


def unfreeze(model: Grown, _: torch.optim.Optimizer) -> None:
    model.body.requires_grad_(True)


def add_a_group(model: Grown, optimizer: torch.optim.Optimizer) -> None:
    model.adapter = nn.Linear(1, 1).double()
    optimizer.add_param_group({"params": list(model.adapter.parameters())})


def replace_a_layer(model: Grown, optimizer: torch.optim.Optimizer) -> None:
    model.body = nn.Linear(4, 1).double()
    optimizer.param_groups[0]["params"] = list(model.parameters())


@pytest.mark.parametrize("change", [unfreeze, add_a_group, replace_a_layer])
@pytest.mark.parametrize("submodules", [False, True])
def test_parameters_that_train_later_have_the_gradient_of_the_whole_batch(
    change: Callable[[Grown, torch.optim.Optimizer], None], submodules: bool
) -> None:
    torch.manual_seed(0)
    model, x = Grown(), torch.randn(8, 4).double()
    model.body.weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = Gradients(model, device=CPU)
    step_once_per_batch(optimizer, gradients)
    change(model, optimizer)
    for number in range(4):
        gradients.begin(2, global_batch=8, first=number == 0, last=number == 3)
        part = x[2 * number : 2 * number + 2]
        output = model.adapter(model.body(part)) if submodules else gradients.model(part)
        output.square().mean().backward()
    trained = [one for one in model.parameters() if one.requires_grad]
    expected = torch.autograd.grad(model(x).square().mean(), trained)
    torch.testing.assert_close([one.grad for one in trained], list(expected))


@pytest.mark.parametrize("made", ["before", "after"])
def test_a_schedule_steps_once_per_batch_and_does_not_complain(made: str) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    gradients = Gradients(model, device=CPU)

    def schedule() -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    scheduler = schedule() if made == "before" else None
    step_once_per_batch(optimizer, gradients)
    stepping = OncePerBatch(scheduler or schedule(), gradients)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for last in (False, True):
            gradients.begin(1, global_batch=2, first=not last, last=last)
            zero_first(optimizer, lambda: model(torch.ones(1, 1)).mean())
            stepping.step()
    assert stepping.get_last_lr() == [0.5]
    assert optimizer.param_groups[0]["lr"] == 0.5
    torch.save(stepping.state_dict(), "/dev/null")


def test_a_step_is_noticed() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    gradients = Gradients(model, device=CPU)
    step_once_per_batch(optimizer, gradients)
    for last in (False, True):
        gradients.begin(1, global_batch=2, first=not last, last=last)
        zero_first(optimizer, lambda: model(torch.ones(1, 1)).mean())
        assert gradients.stepped == last


def test_an_incomplete_batch_that_is_abandoned_leaves_nothing() -> None:
    model = nn.Linear(1, 1)
    gradients = Gradients(model, device=CPU)
    gradients.begin(1, global_batch=2, first=True, last=False)
    model(torch.ones(1, 1)).mean().backward()
    gradients.abandon()
    assert not gradients.accumulating
    assert model.weight.grad is None


def test_a_rank_alone_among_its_peers_is_weighted_as_before() -> None:
    """Also after members have changed: hooks are neither lost nor doubled."""
    model = nn.Linear(1, 1, bias=False)
    gradients = Gradients(model, device=CPU)
    for _ in range(3):
        gradients.replicate(Peers(Gloo(), rank=0, world_size=1), 1)
    for number, size in enumerate((2, 1)):
        gradients.begin(size, global_batch=3, first=number == 0, last=number == 1)
        gradients.model(torch.ones(size, 1)).mean().backward()
    assert model.weight.grad is not None
    assert model.weight.grad.item() == pytest.approx(1.0)


def test_between_two_generations_there_is_no_gradient_and_no_weight() -> None:
    model = nn.Linear(1, 1, bias=False)
    gradients = Gradients(model, device=CPU)
    gradients.begin(1, global_batch=4, first=True, last=False)
    model(torch.ones(1, 1)).mean().backward()
    gradients.detach()
    assert model.weight.grad is None
    assert not gradients.accumulating


def test_the_learning_rate_of_a_step_is_scaled_and_the_script_sees_its_own() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    gradients = Gradients(model, device=CPU)
    step_once_per_batch(optimizer, gradients)
    gradients.lr_factor = 0.25
    gradients.begin(1, global_batch=1, first=True, last=True)
    zero_first(optimizer, lambda: model(torch.ones(1, 1)).mean())
    assert model.weight.item() == 1.0 - 0.5 * 0.25
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_step_with_a_gradient_that_is_not_whole_is_not_taken() -> None:
    model = nn.Linear(1, 1, bias=False)
    before = model.weight.item()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    gradients = Gradients(model, device=CPU)
    step_once_per_batch(optimizer, gradients)
    gradients.begin(1, global_batch=1, first=True, last=True)
    gradients.broken = True  # as when a peer is lost
    zero_first(optimizer, lambda: model(torch.ones(1, 1)).mean())
    OncePerBatch(schedule, gradients).step()
    assert not gradients.stepped
    assert model.weight.item() == before
    assert optimizer.param_groups[0]["lr"] == 0.5
    gradients.begin(1, global_batch=1, first=True, last=True)
    zero_first(optimizer, lambda: model(torch.ones(1, 1)).mean())
    assert gradients.stepped
    assert model.weight.item() == before - 0.5


# The model as the script trains it


class Named(nn.Module):
    """A model with more than parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("mask", torch.ones(2))
        self.vocabulary = ["a", "b"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.mask  # type: ignore[operator, no-any-return]

    def generate(self, count: int) -> list[str]:
        return self.vocabulary[:count]

    @property
    def width(self) -> int:
        return self.linear.out_features


def doubling(model: ElasticModule) -> ElasticModule:
    """As among peers: forward passes go through something that can be neither copied nor pickled."""
    lock = threading.Lock()

    def around(x: torch.Tensor) -> torch.Tensor:
        with lock:
            return 2 * model.module(x)  # type: ignore[no-any-return]

    model.set_forward(around)
    return model


@pytest.mark.parametrize("among_peers", [False, True])
def test_the_wrapped_model_is_the_model_in_all_but_its_forward_pass(among_peers: bool) -> None:
    model = Named()
    wrapped = ElasticModule(model)
    if among_peers:
        doubling(wrapped)
    assert list(wrapped.state_dict()) == list(model.state_dict())
    assert wrapped.module is model
    assert (wrapped.vocabulary, wrapped.generate(1), wrapped.width) == (["a", "b"], ["a"], 2)
    assert wrapped.linear is model.linear
    assert wrapped.mask is model.mask
    assert list(wrapped.parameters()) == list(model.parameters())
    x = torch.rand(3, 2)
    assert torch.equal(wrapped(x), 2 * model(x) if among_peers else model(x))
    wrapped.eval()
    assert not model.training
    with pytest.raises(AttributeError, match="nothing"):
        wrapped.nothing  # noqa: B018
    assert not hasattr(wrapped, "nothing")


@pytest.mark.parametrize("among_peers", [False, True])
def test_a_state_fits_at_any_size_and_without_the_library(among_peers: bool) -> None:
    wrapped, other = ElasticModule(Named()), Named()
    if among_peers:
        doubling(wrapped)
    other.load_state_dict(wrapped.state_dict())
    x = torch.rand(3, 2)
    assert torch.equal(other(x), wrapped.module(x))
    wrapped.load_state_dict(Named().state_dict())
    with pytest.raises(RuntimeError, match="Missing key"):
        wrapped.load_state_dict({})


@pytest.mark.parametrize("among_peers", [False, True])
@pytest.mark.parametrize("again", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_of_the_model_has_no_peers(again: Callable[[nn.Module], nn.Module], among_peers: bool) -> None:
    """Scripts copy the model for an average of its weights, or save it whole."""
    wrapped = ElasticModule(Named())
    if among_peers:
        doubling(wrapped)
    copied = again(wrapped)
    x = torch.rand(3, 2)
    assert torch.equal(copied(x), wrapped.module(x))
    with torch.no_grad():
        copied.linear.weight.zero_()
    assert not torch.equal(copied(x), wrapped.module(x))
    averaged = torch.optim.swa_utils.AveragedModel(wrapped)
    averaged.update_parameters(wrapped)
    assert torch.equal(averaged(x), wrapped.module(x))


def test_wrapped_model_is_an_instance_of_its_own_class_and_of_the_wrapper() -> None:
    wrapped = ElasticModule(Named())
    assert isinstance(wrapped, Named)
    assert isinstance(wrapped, ElasticModule)
    assert not isinstance(wrapped, nn.Linear)
    assert wrapped.__class__.__name__ == "Named"


def compiled(model: nn.Module) -> Callable[..., torch.Tensor]:
    return torch.compile(model, backend="eager")


def in_a_compiled_function(model: nn.Module) -> Callable[..., torch.Tensor]:
    return torch.compile(lambda rows: model(rows) * 2, backend="eager")


@pytest.mark.parametrize("wrap", [compiled, in_a_compiled_function])
def test_the_wrapper_is_not_compiled_and_says_what_to_do(
    wrap: Callable[[nn.Module], Callable[..., torch.Tensor]],
) -> None:
    gradients = Gradients(nn.Linear(1, 1), device=CPU)
    gradients.begin(1, global_batch=1, first=True, last=True)
    with pytest.raises(RuntimeError, match=r"compile the model before prepare\(\)"):
        wrap(gradients.model)(torch.ones(1, 1))


def test_the_model_compiles_in_place_after_prepare() -> None:
    model, x, graphs = Grown(), torch.randn(2, 4).double(), []

    def backend(graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    gradients = Gradients(model, device=CPU)
    gradients.model.compile(backend=backend)
    for last in (False, True):
        gradients.begin(1, global_batch=2, first=not last, last=last)
        gradients.model(x[int(last)]).mean().backward()
    assert graphs
    torch.testing.assert_close(model.body.weight.grad, x.mean(0, keepdim=True))


def add_a_hook(parameter: nn.Parameter) -> None:
    parameter.register_hook(lambda gradient: gradient.clamp(-1, 1))  # type: ignore[no-untyped-call]


def add_a_hook_after_accumulation(parameter: nn.Parameter) -> None:
    def clamp(one: torch.Tensor) -> None:
        assert one.grad is not None
        one.grad.clamp_(-1, 1)

    parameter.register_post_accumulate_grad_hook(clamp)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("add", [add_a_hook, add_a_hook_after_accumulation, None])
def test_a_hook_of_the_script_is_named_once(
    add: Callable[[nn.Parameter], None] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    gradients = Gradients(model, device=CPU)
    for step in range(4):
        if add is not None and step == 2:
            add(model[1].weight)
        gradients.begin(1, global_batch=1, first=True, last=True)
        gradients.model(torch.ones(1, 1)).mean().backward()
    assert capsys.readouterr().err.count("a hook on 1.weight sees a part of the gradient") == (
        add is not None
    )
