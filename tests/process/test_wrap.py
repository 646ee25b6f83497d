"""What `fleet.wrap` refuses, what it notices later, and what it leaves behind."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_model, save_model
from tests.process.small_net import Numbers, close, flat, make_net, mean_loss, on_one_machine, sgd
from tests.process.started import PATIENCE_S, free_port
from tests.unit.engines.process.node.third_party import Wrapper
from torch import nn
from torch.optim import SGD, Adagrad, Optimizer
from torch.optim.lr_scheduler import StepLR

import ownpace
from ownpace.engines.process.node.user_pair import UserPair
from ownpace.engines.process.node.user_parameters import UserParameters

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)


def refused(words: str) -> Any:
    return pytest.raises(ownpace.InputError, match=words)


class Mine(SGD):
    """Importable from here, and so by a server; but not with what it was made with."""

    def __init__(self, params: Any, lr: float = 0.1, twist: float = 0.0) -> None:
        super().__init__(params, lr=lr)
        self.twist = twist


def in_ddp(net: nn.Module) -> nn.Module:
    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
    return nn.Sequential(nn.Identity(), nn.parallel.DistributedDataParallel(net))


def on_meta(net: nn.Module) -> nn.Module:
    net[2] = nn.Linear(3, 3, device="meta")
    return net


MODELS: dict[str, tuple[Callable[[nn.Sequential], Any], str]] = {
    "its 1 is a DistributedDataParallel": (in_ddp, "the model is wrapped already"),
    "DataParallel": (nn.DataParallel, "it is a DataParallel; give the module inside"),
    "meta": (on_meta, r"2\.weight is on the meta device"),
    "lazy": (lambda net: nn.Sequential(net, nn.LazyLinear(2)), r"1\.weight has no shape yet"),
    "waits for all": (lambda net: nn.SyncBatchNorm.convert_sync_batchnorm(make_net(norm=True)), "1 is a SyncBatchNorm"),
    "complex": (lambda net: net.to(torch.complex64), "complex64; a fleet trains real numbers"),
    "no module": (lambda net: net.forward, "given a method for a model"),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.filterwarnings("ignore")  # torch warns of complex and lazy modules
def test_models_that_cannot_be_trained_are_refused(kind: str) -> None:
    make, words = MODELS[kind]
    net = make_net()
    model = make(net)
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else list(net.parameters())
    try:
        with ownpace.join() as fleet, refused(words):
            fleet.wrap(model, SGD(parameters, lr=0.1))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def test_a_model_inside_a_distributed_one_is_refused_until_that_is_gone() -> None:
    net = make_net()
    outside = in_ddp(net)
    optimizer = sgd(net)
    try:
        with ownpace.join("sync") as fleet:
            fleet.wrap(net, optimizer)
            loop = fleet.batches(Numbers(16), 8)
            with refused("is inside a DistributedDataParallel"):
                next(iter(loop))
            del outside
            for x, y, _ in loop:
                mean_loss(net, x, y).backward()
                optimizer.step()
                optimizer.zero_grad()
        assert fleet.samples == 16
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


class InTwoParts(SGD):
    """As implementations of SAM are."""

    def first_step(self) -> None:
        """Climb to where the second gradient is asked for."""

    def second_step(self) -> None:
        """Come back, and make the real step."""


def test_optimizers_that_cannot_be_used_are_refused() -> None:
    net, other = make_net(), make_net()
    parameters = list(net.parameters())
    with ownpace.join() as fleet:
        with refused("LBFGS cannot be used: it needs more than one dense gradient"):
            fleet.wrap(net, torch.optim.LBFGS(parameters))
        with refused("InTwoParts cannot be used: it needs more than one dense gradient"):
            fleet.wrap(net, InTwoParts(parameters, lr=0.1))
        with refused("SparseAdam cannot be used"):
            fleet.wrap(net, Wrapper(torch.optim.SparseAdam(parameters)))
        with refused("given a StepLR for an optimizer"):
            fleet.wrap(net, StepLR(sgd(net), 1))  # type: ignore[type-var]
        with refused("no parameters of floating point"):
            fleet.wrap(net, SGD([nn.Parameter(torch.zeros(2, dtype=torch.int32), requires_grad=False)], lr=0.1))
        fleet.wrap(net, sgd(net))
        with refused(r"0\.weight is in two optimizers"):
            fleet.wrap(net, sgd(net))
        with refused("overlap=True works with one model only"):
            fleet.wrap(other, sgd(other), overlap=True)
        optimizer = sgd(other)
        fleet.wrap(other, optimizer)
        with refused("belongs to a fleet already"):
            fleet.wrap(other, optimizer)


def test_two_models_and_servers_are_refused() -> None:
    net, other = make_net(), make_net()
    with ownpace.join("async") as fleet:
        fleet.wrap(net, sgd(net))
        fleet.wrap(other, sgd(other))
        with refused("2 models, but parameter servers have one optimizer"):
            next(iter(fleet.batches(Numbers(16), 8)))


def test_optimizers_that_a_server_cannot_make_are_refused() -> None:
    class Local(SGD):
        pass

    def attempt(make: Callable[[nn.Sequential], Optimizer]) -> None:
        net = make_net()
        with ownpace.join("async") as fleet:
            fleet.wrap(net, make(net))
            next(iter(fleet.batches(Numbers(16), 8)))

    with refused("Local is defined in the script itself.*put it into a module of its own"):
        attempt(lambda net: Local(net.parameters(), lr=0.1))
    with refused("Wrapper cannot be made again on parameter servers"):
        attempt(lambda net: Wrapper(sgd(net)))
    with refused(r"Mine keeps twist=0\.5 outside of its parameter groups"):
        attempt(lambda net: Mine(net.parameters(), twist=0.5))


def test_adagrad_works_with_servers() -> None:
    """Its state is made before the first step."""
    net = make_net()
    optimizer = Adagrad(net.parameters(), lr=0.1)
    used = []
    with ownpace.join("async") as fleet:
        fleet.wrap(net, optimizer)
        for x, y, indices in fleet.batches(Numbers(24), 8):
            used.append([indices.tolist()])
            mean_loss(net, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
    close(flat(net), on_one_machine(24, used, lambda net: Adagrad(net.parameters(), lr=0.1)))


def loop_with(change: Callable[[nn.Sequential, Optimizer], None], words: str, make: Any = sgd) -> None:
    """`change` happens in a loop: at the latest at its end, it is refused."""
    net = make_net()
    optimizer = make(net)

    def run() -> None:
        with ownpace.join("sync") as fleet:
            fleet.wrap(net, optimizer)
            for number, (x, y, _) in enumerate(fleet.batches(Numbers(32), 8)):
                mean_loss(net, x, y).backward()
                try:
                    change(net, optimizer) if number == 1 else None
                except StopIteration:
                    break
                optimizer.step()
                optimizer.zero_grad()

    with refused(words):
        run()
    assert "step" not in vars(optimizer)  # given back, however it ended


def test_parameters_that_change_are_noticed() -> None:
    extra = nn.Parameter(torch.zeros(3))

    def replace(net: nn.Sequential, optimizer: Optimizer) -> None:
        optimizer.param_groups[0]["params"][-1] = extra

    def move(net: nn.Sequential, optimizer: Optimizer) -> None:
        net[0].weight.data = net[0].weight.data.clone()

    def replace_and_leave(net: nn.Sequential, optimizer: Optimizer) -> None:
        replace(net, optimizer)
        raise StopIteration

    loop_with(replace_and_leave, "give the optimizer all parameters before")
    loop_with(lambda net, o: o.add_param_group({"params": [extra]}), "give the optimizer all parameters before")
    loop_with(replace, "give the optimizer all parameters before")
    loop_with(move, r"0\.weight is no longer where fleet\.wrap put it")


def test_sparse_gradients_are_refused() -> None:
    def make_sparse(net: nn.Sequential, optimizer: Optimizer) -> None:
        net[3].weight.grad = net[3].weight.grad.to_sparse()

    loop_with(make_sparse, r"the gradient of 3\.weight is sparse; make its layer with sparse=False")


@pytest.mark.filterwarnings("ignore:Using backward")
def test_gradients_with_a_graph_are_refused() -> None:
    def go_back_twice(net: nn.Sequential, optimizer: Optimizer) -> None:
        optimizer.zero_grad()
        net(torch.ones(8, 6)).square().sum().backward(create_graph=True)

    loop_with(go_back_twice, r"the gradient of 0\.weight has a graph \(create_graph=True\)")


def test_an_algorithm_that_needs_a_learning_rate_says_so() -> None:
    net = make_net()
    optimizer = SGD(net.parameters(), lr=0.1)
    optimizer.param_groups[0]["lr"] = None  # as Adafactor has it, which finds its own
    with refused(r"SGD has no learning rate \(lr=None\)"):
        _ = UserPair(net, optimizer).lr


def test_the_step_of_an_optimizer_inside_is_refused() -> None:
    """As SAM's second step makes it: it would move one rank alone."""
    loop_with(
        lambda net, o: o.inner.step(),  # type: ignore[attr-defined]
        "the SGD inside the optimizer was stepped by itself",
        lambda net: Wrapper(sgd(net)),
    )


@pytest.mark.parametrize("algorithm", ["sync", "pace", "async"])
def test_a_forward_pass_before_the_step_of_the_last_batch_is_explained(algorithm: str) -> None:
    net = make_net()
    optimizer = sgd(net)

    def run() -> None:
        with ownpace.join(algorithm) as fleet:
            fleet.wrap(net, optimizer)
            loss = None
            for x, y, _ in fleet.batches(Numbers(64), 8):
                following = mean_loss(net, x, y)
                (following if loss is None else loss).backward(retain_graph=True)
                optimizer.step()
                optimizer.zero_grad()
                loss = following

    with refused("begin a batch's forward pass after the step of the batch before it") as caught:
        run()
    assert "modified by an inplace operation" in str(caught.value.__cause__)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("algorithm", ["pace", "local"])
def test_evaluating_between_the_passes_is_no_change(algorithm: str) -> None:
    net = make_net()
    optimizer = sgd(net)
    used = []
    with ownpace.join(algorithm) as fleet:
        fleet.wrap(net, optimizer)
        for x, y, indices in fleet.batches(Numbers(32), 8):
            used.append([indices.tolist()])
            loss = mean_loss(net, x, y)
            fleet.evaluate(flat)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    close(flat(net), on_one_machine(32, used, sgd))


def test_two_parameters_in_one_place_are_refused() -> None:
    net = make_net()
    net.tied = nn.Parameter(torch.empty(0))
    net.tied.data = next(net[0].parameters()).data
    with ownpace.join() as fleet, refused(r"tied and 0\.weight are two parameters in the same memory"):
        fleet.wrap(net, sgd(net))


def test_settings_inside_a_wrapper_are_agreed_on_once() -> None:
    """Those of groups that the wrapper has in common with what it wraps count once."""
    net = make_net()
    inner = sgd(net)
    shared = Wrapper(inner)
    shared.param_groups = inner.param_groups
    count = len(UserParameters([UserPair(net, inner)]).settings())
    assert len(UserParameters([UserPair(net, shared)]).settings()) == count
    assert len(UserParameters([UserPair(net, Wrapper(inner))]).settings()) == 2 * count


# ---- afterwards ----


def one_epoch(fleet: Any, net: nn.Module, optimizer: Optimizer) -> None:
    for x, y, _ in fleet.batches(Numbers(32), 8):
        mean_loss(net, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()


def check_ordinary(net: nn.Sequential, optimizer: Optimizer, before: dict[str, object]) -> None:
    """Nothing of a fleet is left on a model and its optimizer."""
    file = io.BytesIO()
    torch.save(net[0].bias.data, file)
    assert net[0].bias.untyped_storage().nbytes() == 8 * 4
    storages = {parameter.untyped_storage().data_ptr() for parameter in net.parameters()}
    assert len(storages) == 4
    assert all(not parameter._post_accumulate_grad_hooks for parameter in net.parameters())
    assert not any(module._state_dict_hooks for module in net.modules())
    assert {name: value for name, value in vars(optimizer).items() if name in ("step", *_AMP)} == before
    net(Numbers(4).x).sum().backward()
    was = flat(net)
    optimizer.step()
    assert not torch.equal(flat(net), was)
    optimizer.zero_grad()


_AMP = ("_step_supports_amp_scaling",)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("scheduled", [False, True])
def test_after_a_fleet_everything_is_ordinary_again(scheduled: bool, overlap: bool, tmp_path: Any) -> None:
    net = make_net()
    optimizer = sgd(net)
    if scheduled:
        StepLR(optimizer, 1)  # it has put a step of its own there
    before = {name: value for name, value in vars(optimizer).items() if name in ("step", *_AMP)}
    assert bool(before) == scheduled
    for number in range(2):
        with ownpace.join("pace") as fleet:
            fleet.wrap(net, optimizer, overlap=overlap)
            one_epoch(fleet, net, optimizer)
            if number:
                fleet.unwrap()
                check_ordinary(net, optimizer, before)
                with refused(r"call fleet\.wrap"):
                    next(iter(fleet.batches(Numbers(8), 8)))
        check_ordinary(net, optimizer, before)
    assert fleet.summary is not None
    save_model(net, str(tmp_path / "model.safetensors"))
    other = make_net(seed=5)
    load_model(other, str(tmp_path / "model.safetensors"))
    assert torch.equal(flat(other), flat(net))


@pytest.mark.parametrize("algorithm", ["sync", "pace"])
def test_after_an_error_the_model_is_the_users_again(algorithm: str) -> None:
    net = make_net()
    optimizer = sgd(net)

    used: list[list[list[int]]] = []

    def step(x: torch.Tensor, y: torch.Tensor, indices: torch.Tensor) -> None:
        used.append([indices.tolist()])
        mean_loss(net, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()

    def unwrap_too_early(fleet: Any) -> None:
        for batch in fleet.batches(Numbers(32), 8):
            step(*batch)
            fleet.unwrap()

    def run() -> None:
        with ownpace.join(algorithm) as fleet:
            fleet.wrap(net, optimizer)
            with refused("within a loop"):
                unwrap_too_early(fleet)
            for batch in fleet.batches(Numbers(32), 8):
                if len(used) == 3:
                    raise KeyError("the user's own")
                step(*batch)

    with pytest.raises(KeyError):
        run()
    # The model with all that was learnt, not a point that the algorithm looked at.
    close(flat(net), on_one_machine(32, used, sgd))
    check_ordinary(net, optimizer, {})


def test_a_layer_may_be_unfrozen_with_overlap() -> None:
    net = make_net()
    net[0].requires_grad_(False)
    optimizer = sgd(net)
    used: list[list[list[int]]] = []
    with ownpace.join("sync") as fleet:
        fleet.wrap(net, optimizer, overlap=True)
        for epoch in range(2):
            net[0].requires_grad_(epoch == 1)
            for x, y, indices in fleet.batches(Numbers(16), 8):
                used.append([indices.tolist()])
                mean_loss(net, x, y).backward()
                optimizer.step()
                optimizer.zero_grad()
            assert torch.equal(flat(net[0]), flat(make_net()[0])) == (epoch == 0)


class Recurrent(nn.Module):
    """As many are written: for a GPU, whose kernels want all weights side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rnn.flatten_parameters()
        out: torch.Tensor = self.head(self.rnn(x[:, None])[0][:, -1])
        return out


def test_a_model_may_put_its_recurrent_weights_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []

    def move(module: nn.RNNBase) -> None:  # what it does on a GPU, and not on a CPU
        moved.append(module)
        for parameter in module.parameters():
            parameter.data = parameter.data.clone()

    net = Recurrent()
    optimizer = SGD(net.parameters(), lr=0.1)
    with monkeypatch.context() as patched, ownpace.join("sync", quiet=True) as fleet:
        fleet.wrap(net, optimizer)
        patched.setattr(nn.RNNBase, "flatten_parameters", move)
        for x, y, _ in fleet.batches(Numbers(32), 8):
            optimizer.zero_grad()
            mean_loss(net, x, y).backward()
            optimizer.step()
        assert moved == []
        fleet.unwrap()
        net.rnn.flatten_parameters()
        assert moved == [net.rnn, net.rnn]  # by the fleet, then here
