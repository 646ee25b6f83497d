"""A user's models and optimizers, as what a learner holds and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import reduce

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.values import Gradient, Shard
from ownpace.core.learning.group_settings import GroupSettings
from ownpace.core.learning.layout import Layout, is_channels_last
from ownpace.core.learning.norms import length
from ownpace.core.learning.optimizer import SameBits
from ownpace.engines.process.node.flat_steps import FlatSteps
from ownpace.engines.process.node.gathering import put_sums
from ownpace.engines.process.node.no_trace import no_trace
from ownpace.engines.process.node.user_pair import UserPair, check_disjoint, check_gradients, with_groups
from ownpace.engines.process.talk.spare_memory import SpareMemory


class UserParameters:
    """The parameters of a user's optimizers: views of one vector, which is updated in place.

    The vector has the widest type of all of them. A parameter of another type keeps its own memory, and is copied to
    and from the vector: exactly to it, rounded back, and then the vector has what was rounded.
    """

    def __init__(self, pairs: Sequence[UserPair]) -> None:
        self.pairs = pairs
        check_disjoint(pairs)
        names = [name for pair in pairs for name in pair.names]
        if len(pairs) > 1:
            names = [f"model {n}: {name}" for n, pair in enumerate(pairs, 1) for name in pair.names]
        self.parameters: list[nn.Parameter] = [parameter for pair in pairs for parameter in pair.parameters]
        named = zip(names, self.parameters, strict=True)
        self.layout = Layout.of([(name, parameter.shape, is_channels_last(parameter)) for name, parameter in named])
        dtype = reduce(torch.promote_types, [parameter.dtype for parameter in self.parameters])
        self.values = torch.empty(self.layout.size, dtype=dtype, device=self.parameters[0].device)
        self._narrow: list[tuple[nn.Parameter, Tensor]] = []
        for parameter, view in zip(self.parameters, self.layout.views(self.values), strict=True):
            view.copy_(parameter.detach())
            if parameter.dtype == dtype:
                parameter.data = view
            else:
                self._narrow.append((parameter, view))
        self._spare = SpareMemory(self.layout.size, self.values)
        self._spans = self._make_spans()
        self._settings = GroupSettings(with_groups(pairs))
        # In the same memory at every step: the gradients that the optimizers see are views of it.
        self._mean: Tensor | None = None
        self._mean_views: list[Tensor] = []
        self._mean_parts: list[Tensor] = []
        self._flat_steps: list[FlatSteps] = []
        # Not a number: it has the vector's type, so that half precision is multiplied in that.
        self._zero = self.values.new_zeros(())

    def _make_spans(self) -> list[tuple[slice, slice]]:
        """Of each pair, its layers, and its range of the vector."""
        spans, first = [], 0
        ends = [0, *(layer.stop for layer in self.layout.layers)]
        for pair in self.pairs:
            last = first + len(pair.parameters)
            spans.append((slice(first, last), slice(ends[first], ends[last])))
            first = last
        return spans

    @property
    def others(self) -> list[Tensor]:
        """What belongs to the models, but is no optimizer's and no buffer: parameters that begin as those of rank 0."""
        trained = set(map(id, self.parameters))
        models = {id(p): p for pair in self.pairs for p in pair.model.parameters()}
        ours = {id(p): p for pair in self.pairs for group in pair.optimizer.param_groups for p in group["params"]}
        return [parameter.data for key, parameter in {**models, **ours}.items() if key not in trained]

    def part(self, flat: Tensor, pair: int) -> Tensor:
        """A pair's range of a vector."""
        return flat if len(self.pairs) == 1 else flat[self._spans[pair][1]]

    @contextmanager
    def kept_for(self, pairs: Sequence[int]) -> Iterator[Callable[[Tensor], bool]]:
        """Let the parameters of some pairs be afterwards what they were, for graphs that were made of them.

        A generator's samples are often made before the discriminator's step, and gone back through after it.

        Yields:
            Puts them back into a vector; returns whether they have changed at all.
        """
        parameters = [parameter for number in pairs for parameter in self.pairs[number].parameters]
        before = [(number, self.part(self.values, number).clone()) for number in pairs]
        versions = [parameter._version for parameter in parameters]

        def put_back(vector: Tensor) -> bool:
            for number, values in before:
                self.part(vector, number).copy_(values)
            return versions != [parameter._version for parameter in parameters]

        with unnoticed(parameters):
            yield put_back

    def check_place(self) -> None:
        """Raise if the parameters are no longer those that were wrapped, in the places they were put."""
        for pair in self.pairs:
            pair.check_identity()
        narrow = {id(parameter): parameter for parameter, _ in self._narrow}
        views = self.layout.views(self.values)
        for layer, parameter, view in zip(self.layout.layers, self.parameters, views, strict=True):
            moved = parameter.device != view.device or parameter.dtype == view.dtype
            if moved if id(parameter) in narrow else parameter.data_ptr() != view.data_ptr():
                raise InputError(
                    f"{layer.name} is no longer where fleet.wrap put it; move or convert the model before fleet.wrap, "
                    "and write to parameters in place (p.data.copy_(…), not p.data = …)"
                )

    def gather(self, pair: int, samples: int, out: Tensor | None) -> tuple[Tensor, bool]:
        """The sum over the samples of their gradients, out of a pair's `.grad`s, which hold the mean.

        Returns:
            The sum; and whether there are layers without a gradient.
        """
        mine = self.pairs[pair]
        total = self._spare.take() if out is None else out
        layers, span = self._spans[pair]
        partial = len(self.pairs) > 1
        if partial:
            total[: span.start].fill_(-0.0)
            total[span.stop :].fill_(-0.0)
        gradients = [parameter.grad for parameter in mine.parameters]
        some_are_missing = check_gradients(mine.names, gradients)
        put_sums(self._zero, gradients, samples, self.part(total, pair), self.layout.views(total)[layers])
        return total, partial or some_are_missing

    def clip(self, total: Tensor, pair: int, samples: int = 1) -> None:
        """Clip the norm of the mean over the samples, where the user wants it, in place."""
        most = self.pairs[pair].clip_norm
        if most is not None:
            norm = float(length(total)) / samples
            if norm > most:
                total *= most / norm

    def snapshot(self) -> Tensor:
        return self._spare.take().copy_(self.values)

    def step(
        self,
        gradient: Gradient,
        lr_factor: float,
        memory: int = 0,
        settings: Sequence[float] = (),
        *,
        same_bits: SameBits = "everywhere",
    ) -> None:
        assert memory == 0, "a user's optimizer has one state"
        self._make_means(gradient)
        # An optimizer whose model has learnt nothing must not even count a step.
        learning = [number for number in range(len(self.pairs)) if gradient.samples_of(number)]
        # Steps over ranges change no settings: nothing has to be compared before and after.
        if self._settings.are(settings, lr_factor) and all(self._are_flat(number, gradient) for number in learning):
            self._step_flat(learning)
            return
        with self._settings.applied(settings, lr_factor):
            flat = [number for number in learning if self._are_flat(number, gradient)]
            self._step_flat(flat)
            if len(flat) < len(learning):
                self._step_by_layer(gradient, [number for number in learning if number not in flat])

    def _step_flat(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._flat_steps[number].step()
            torch.autograd.graph.increment_version(self.pairs[number].parameters)  # the vector was written to, not they

    def _are_flat(self, number: int, gradient: Gradient) -> bool:
        """Whether an optimizer can step with this over ranges of the vector."""
        return not (gradient.partial or self._narrow) and self._flat_steps[number].are_possible()

    def _step_by_layer(self, gradient: Gradient, numbers: Sequence[int]) -> None:
        """Let optimizers make their own steps."""
        own = [parameter.grad for parameter in self.parameters]
        try:
            self._put_means(gradient)
            for number in numbers:
                self.pairs[number].step()
        finally:
            # The user's own again, as after a step in a plain loop.
            for parameter, gradient_ in zip(self.parameters, own, strict=True):
                parameter.grad = gradient_
        for parameter, view in self._narrow:
            view.copy_(parameter.detach())

    def _make_means(self, gradient: Gradient) -> None:
        """Divide each pair's range of a sum by its samples."""
        if self._mean is None:
            self._mean = torch.empty_like(self.values)
            self._mean_views = self.layout.views(self._mean)
            self._mean_parts = [self._mean[span] for _, span in self._spans]
            for pair, (layers, _) in zip(self.pairs, self._spans, strict=True):
                places, vectors = self.layout.layers[layers], (self.values, self._mean)
                step = pair.elementwise_step
                self._flat_steps.append(FlatSteps(pair.optimizer, step, pair.parameters, places, vectors))
        for number, mean in enumerate(self._mean_parts):
            samples = gradient.samples_of(number)
            if samples:
                torch.div(self.part(gradient.total, number), samples, out=mean)
                self.clip(mean, number)

    def _put_means(self, gradient: Gradient) -> None:
        """Let the `.grad`s be the means; layers without a gradient have none."""
        absent = self.layout.absent(gradient.total) if gradient.partial else [False] * len(self.parameters)
        for parameter, view, none in zip(self.parameters, self._mean_views, absent, strict=True):
            parameter.grad = None if none else view if view.dtype == parameter.dtype else view.to(parameter.dtype)

    def set_settings(self, settings: Sequence[float]) -> None:
        self._settings.assign(settings)

    def peek(self, gradient: Gradient, lr_factor: float, settings: Sequence[float] = ()) -> Tensor:
        if not gradient.samples:
            return self.snapshot()
        self._make_means(gradient)
        learning = [number for number in range(len(self.pairs)) if gradient.samples_of(number)]
        if self._settings.are(settings, lr_factor) and all(self._are_flat(number, gradient) for number in learning):
            return self._peek_flat(learning)
        with self._settings.applied(settings, lr_factor):
            if all(self._are_flat(number, gradient) for number in learning):
                return self._peek_flat(learning)
            return self._peek_by_layer(gradient, learning)

    def _peek_flat(self, numbers: Sequence[int]) -> Tensor:
        ahead = self._spare.take() if len(numbers) == len(self.pairs) else self.snapshot()
        for number in numbers:
            self._flat_steps[number].peek(ahead)
        return ahead

    def _peek_by_layer(self, gradient: Gradient, numbers: Sequence[int]) -> Tensor:
        try:
            with no_trace([pair.optimizer for pair in self.pairs], self.values):
                self._step_by_layer(gradient, numbers)
                return self.snapshot()
        finally:
            self._to_narrow()

    def room(self) -> Tensor:
        raise AssertionError("a user's model has all its parameters before its forward pass")

    def place(self, values: Tensor, shard: Shard) -> None:
        self.values[shard.start : shard.stop] = values
        self._written()

    def overwrite(self, values: Tensor) -> None:
        if values is not self.values:
            self.values.copy_(values)
        self._written()

    def _written(self) -> None:
        """The vector has other values: let everything know."""
        self._to_narrow()
        # A graph that was made before must not be gone back through: its weights are not there any more.
        torch.autograd.graph.increment_version(self.parameters)

    def take_in(self) -> None:
        """Let the vector have what a script has written to parameters: `model.load_state_dict`, say, between loops.

        Most are views of it; those of another type are not.
        """
        for parameter, view in self._narrow:
            view.copy_(parameter.detach())

    def _to_narrow(self) -> None:
        if not self._narrow:
            return
        with torch.no_grad():
            for parameter, view in self._narrow:
                parameter.copy_(view)
                view.copy_(parameter)

    def release(self) -> None:
        """Give every parameter memory of its own again, and every optimizer its step."""
        narrow = {id(parameter) for parameter, _ in self._narrow}
        for parameter in self.parameters:
            if id(parameter) not in narrow:
                parameter.data = parameter.data.clone()
        for steps in self._flat_steps:
            steps.release()
        for pair in self.pairs:
            pair.give_back()

    @property
    def lr(self) -> float:
        return self.pairs[0].lr

    def settings(self) -> Sequence[float]:
        return self._settings.read()

    def difference(self, mine: Sequence[float], of_first: Sequence[float]) -> str:
        return self._settings.difference(mine, of_first)


@contextmanager
def unnoticed(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Changes of parameters that are undone at the end: graphs that were made before may still be gone back through."""
    with ExitStack() as stack:
        for parameter in parameters:
            stack.enter_context(_unsafe_preserve_version_counter(parameter))
        yield
