"""The default model: from context to the parameters of an ambiguity set, in their own units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement, pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from conelayers.internals import weighted_mean, whole
from drolayers.ambiguity.base import AmbiguitySet
from drolayers.ambiguity.parameters import Typical, deviation
from drolayers.ambiguity.sets import Sets
from drolayers.errors import ModelError

MONOMIALS = 20_000
"""Columns that polynomials of the covariates may have at most."""

LEAST = 1e-4
"""The smallest unit of a size around one context, relative to that of all outcomes."""

WEIGHTS = 1_000_000_000
"""Weights that a perceptron may have at most."""

RIDGES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
"""Penalties of squared weights that are compared, in units of inputs and outputs."""


class Standardised(nn.Module):
    """What sees polynomials of the covariates, in units of the training data.

    Args:
        inputs: number of covariates.
        degree: of the polynomials; 1 for the covariates alone.
    """

    input_shift: Tensor
    input_scale: Tensor

    def __init__(self, inputs: int, degree: int) -> None:
        super().__init__()
        self.inputs, self.degree = whole("inputs", inputs), whole("degree", degree)
        self.seen = polynomials(torch.zeros(1, self.inputs), self.degree).shape[1]
        self.register_buffer("input_shift", torch.zeros(self.seen))
        self.register_buffer("input_scale", torch.ones(self.seen))

    def take_inputs(self, Z: Float[Tensor, "n dz"]) -> None:
        """Take the units from contexts; a constant column has no effect."""
        shift, scale = units(polynomials(Z, self.degree))
        self.input_shift.copy_(shift)
        self.input_scale.copy_(scale)

    def inner(self, z: Float[Tensor, "batch dz"]) -> Float[Tensor, "batch column"]:
        """What a network sees of contexts."""
        return (polynomials(z, self.degree) - self.input_shift) / self.input_scale


class SetModel(Standardised):
    """A multilayer perceptron with one network for every parameter of the set.

    Inputs are clipped to the range seen in training, unless ``extrapolate``, and standardised: beyond the data a
    network goes on along a line, wherever that leads. A parameter is ``centre + scale · output``, or ``scale ·
    softplus`` where it must stay positive, with centres and scales taken from the training data by :meth:`take_units`;
    all of that is saved with the model. Factors of ellipsoids are triangular, their diagonals positive. As in the
    paper, parameters do not share layers, so that fitting one does not move another.

    Args:
        ambiguity: the set, or all sets of a problem.
        inputs: number of covariates.
        hidden: widths of the hidden layers.
        generator: for the initial weights.
        degree: of the polynomials of the covariates that the networks see; 1 for the covariates alone.
        extrapolate: whether inputs outside the range seen in training are taken as they are.

    Attributes:
        lowest: the smallest value of every covariate in training, ``(inputs,)``; minus infinity before.
        highest: the largest one.
    """

    centre: Tensor
    scale: Tensor
    positive: Tensor
    lowest: Tensor
    highest: Tensor

    def __init__(
        self,
        ambiguity: AmbiguitySet | Sets,
        inputs: int,
        hidden: Sequence[int] = (64, 64),
        generator: torch.Generator | None = None,
        degree: int = 1,
        extrapolate: bool = False,
    ) -> None:
        super().__init__(inputs, degree)
        self.hidden, self.extrapolate = tuple(int(h) for h in hidden), extrapolate
        shapes = ambiguity.parameters
        if not shapes:
            raise ModelError("The ambiguity set has no learnable parameters: leave out a value to learn one.")
        widths = [int(torch.Size(shape).numel()) for shape in shapes.values()]
        self.networks = nn.ModuleList(Perceptron([self.seen, *self.hidden, width], generator) for width in widths)
        self.register_buffer("centre", torch.zeros(ambiguity.size))
        self.register_buffer("scale", torch.ones(ambiguity.size))
        self.register_buffer("positive", torch.zeros(ambiguity.size, dtype=torch.bool))
        self.register_buffer("lowest", torch.full((self.inputs,), -torch.inf))
        self.register_buffer("highest", torch.full((self.inputs,), torch.inf))

    def take_units(
        self,
        ambiguity: AmbiguitySet | Sets,
        Z: Float[Tensor, "n dz"],
        Y: Float[Tensor, "n dim"],
        near: Float[Tensor, "item point dim"] | None = None,
    ) -> None:
        """Take the range and the units of inputs, and the units of outputs, from training data.

        A constant column of Z has no effect.

        Args:
            ambiguity: the set, or all sets of a problem.
            Z: contexts.
            Y: outcomes.
            near: outcomes around some contexts. A size that is fitted to data is counted in the median of what is
                typical around one: of all outcomes together it may be many times as large, and a network that has to
                come down from there steps beyond zero, where softplus is flat.
        """
        self.take_inputs(Z)
        self.lowest.copy_(Z.amin(0))
        self.highest.copy_(Z.amax(0))
        typical = ambiguity.typical(Y)
        around = [ambiguity.typical(some) for some in near] if near is not None and near.shape[1] > 1 else []
        for name, value in typical.items():
            if value.positive is True and value.meaningful and around:
                local = torch.stack([one[name].scale for one in around]).median(0).values
                size = torch.minimum(torch.maximum(local, LEAST * value.scale), value.scale)
                typical[name] = replace(value, centre=size, scale=size)
        self.take_typical(ambiguity, typical)

    def take_typical(self, ambiguity: AmbiguitySet | Sets, typical: Mapping[str, Typical]) -> None:
        """Take the units of some parameters from what is typical of them."""
        widths = [int(torch.Size(shape).numel()) for shape in ambiguity.parameters.values()]
        buffers = zip(*(part.split(widths) for part in (self.centre, self.scale, self.positive)), strict=True)
        for name, (centre, scale, positive) in zip(ambiguity.parameters, buffers, strict=True):
            if name in typical:
                value = typical[name]
                centre.copy_(value.centre.reshape(-1))
                step = value.scale if value.fixed is None else value.scale.masked_fill(value.fixed, 0.0)
                scale.copy_(step.reshape(-1))
                positive.copy_(torch.as_tensor(value.positive).expand_as(value.centre).reshape(-1))

    def take_linear(
        self,
        ambiguity: AmbiguitySet | Sets,
        Z: Float[Tensor, "n dz"],
        aims: Mapping[str, Float[Tensor, "n ..."]],
        held_Z: Float[Tensor, "m dz"],
        held_aims: Mapping[str, Float[Tensor, "m ..."]],
        weights: Float[Tensor, "n"] | None = None,
        held_weights: Float[Tensor, "m"] | None = None,
    ) -> None:
        """Begin with some parameters at linear maps of the covariates, with the ridge that validation data like best.

        Args:
            ambiguity: the set, or all sets of a problem.
            Z: contexts.
            aims: values of these parameters, context by context.
            held_Z: contexts of validation data.
            held_aims: values there.
            weights: of the contexts; None for equal weights.
            held_weights: of those of validation data.
        """
        inner, held = (self.inner(self.clipped(part)) for part in (Z, held_Z))
        widths = [int(torch.Size(shape).numel()) for shape in ambiguity.parameters.values()]
        units = zip(self.centre.split(widths), self.scale.split(widths), strict=True)
        for name, network, (centre, scale) in zip(ambiguity.parameters, self.networks, units, strict=True):
            if name in aims:
                # What is fixed has no unit.
                step = torch.where(scale > 0, scale, torch.ones_like(scale))
                T, held_T = ((part[name].reshape(len(part[name]), -1) - centre) / step for part in (aims, held_aims))
                network.take_linear(*ridge(inner, T, held, held_T, weights, held_weights))  # type: ignore[operator]

    def forward(self, z: Float[Tensor, "batch dz"]) -> Float[Tensor, "batch theta"]:
        """θ for a batch of contexts."""
        inner = self.inner(self.clipped(z))
        raw = torch.cat([network(inner) for network in self.networks], 1)
        above = above_zero(raw) * self.scale
        return torch.where(self.positive, above, self.centre + self.scale * raw)

    def clipped(self, z: Float[Tensor, "batch dz"]) -> Float[Tensor, "batch dz"]:
        """Clip contexts to the range seen in training, unless the model extrapolates."""
        return z if self.extrapolate else torch.minimum(torch.maximum(z, self.lowest.to(z)), self.highest.to(z))


def above_zero(raw: Tensor) -> Tensor:
    """Positive values for any outputs of a network; one for an output of zero, since softplus(ln(e - 1)) = 1."""
    return nn.functional.softplus(raw + 0.5413248546129181)


def monomials(covariates: int, degree: int, most: int = MONOMIALS) -> int:
    """How many monomials of degree one up to some degree there are."""
    count = 1
    for d in range(1, degree + 1):
        count = count * (covariates + d) // d
        if count - 1 > most:
            raise ModelError(
                f"degree={degree} of {covariates} covariates makes more than {most:,} monomials: choose a smaller one."
            )
    return count - 1


def polynomials(z: Float[Tensor, "batch dz"], degree: int) -> Float[Tensor, "batch monomial"]:
    """All monomials of the covariates from degree one up to some degree."""
    monomials(z.shape[1], degree)
    columns = range(z.shape[1])
    parts = [
        z[:, list(chosen)].prod(1) for d in range(1, degree + 1) for chosen in combinations_with_replacement(columns, d)
    ]
    return z if degree == 1 else torch.stack(parts, 1)


def units(data: Float[Tensor, "n column"]) -> tuple[Float[Tensor, " column"], Float[Tensor, " column"]]:
    """Mean and standard deviation of every column; the unit of a constant column is its size, of zeros one."""
    return data.mean(0), deviation(data)


def ridge(
    X: Float[Tensor, "n column"],
    T: Float[Tensor, "n output"],
    held_X: Float[Tensor, "m column"],
    held_T: Float[Tensor, "m output"],
    weights: Float[Tensor, "n"] | None = None,
    held_weights: Float[Tensor, "m"] | None = None,
) -> tuple[Float[Tensor, "output column"], Float[Tensor, " output"]]:
    """Weights and shift of a linear map by least squares, with the penalty that is best on validation data.

    The squares of rows are averaged by their weights; equally unless given.
    """
    shift, middle, count = weighted_mean(T, weights), weighted_mean(X, weights), len(X)
    inner, outer = X - middle, T - shift
    if weights is not None:
        # Rows times √w, with w of mean one, have the squares times w.
        root = (weights / weights.mean()).sqrt().to(X)[:, None]
        inner, outer = root * inner, root * outer
    # Eigenvectors of the smaller of both products: there may be many more columns than rows.
    tall = count >= X.shape[1]
    values, vectors = torch.linalg.eigh((inner.T @ inner if tall else inner @ inner.T) / count)
    pulled = vectors.T @ (inner.T @ outer if tall else outer) / count
    back = vectors if tall else inner.T @ vectors
    found = [back @ (pulled / (values.clamp(min=0.0) + penalty)[:, None]) for penalty in RIDGES]
    errors = [
        float(weighted_mean(((held_X - middle) @ W + shift - held_T).square().sum(1), held_weights)) for W in found
    ]
    best = found[min(range(len(RIDGES)), key=errors.__getitem__)]
    return best.T, shift - middle @ best


class Perceptron(nn.Module):
    """Linear layers with rectifiers between; the last one starts small, so that training starts at typical values.

    Beside them a linear map of the inputs is added once it has been fitted (:meth:`take_linear`).

    Args:
        widths: of the inputs, the hidden layers and the outputs.
        generator: for the initial weights.
    """

    straight: Tensor

    def __init__(self, widths: Sequence[int], generator: torch.Generator | None) -> None:
        super().__init__()
        if (count := sum(a * b for a, b in pairwise(widths))) > WEIGHTS:
            raise ModelError(
                f"A network of widths {list(widths)} has {count:.0e} weights: choose smaller hidden layers."
            )
        layers: list[nn.Module] = []
        for k, (fan_in, fan_out) in enumerate(pairwise(widths)):
            linear = nn.Linear(fan_in, fan_out)
            last = k == len(widths) - 2
            gain = 0.1 if last else 1.0
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu", generator=generator)
            with torch.no_grad():
                linear.weight.mul_(gain)
                linear.bias.zero_()
            layers += [linear] if last else [linear, nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.beside = nn.Linear(widths[0], widths[-1], bias=False) if len(widths) > 2 else None
        self.register_buffer("straight", torch.zeros((), dtype=torch.bool))
        if self.beside is not None:
            nn.init.zeros_(self.beside.weight)

    @torch.no_grad()
    def take_linear(self, weight: Float[Tensor, "output column"], bias: Float[Tensor, " output"]) -> None:
        """Begin at a linear map; the layers go on from nothing, and learn what is left."""
        last = self.layers[-1]
        last.bias.copy_(bias)  # type: ignore[operator]
        if self.beside is None:
            last.weight.copy_(weight)  # type: ignore[operator]
        else:
            last.weight.zero_()  # type: ignore[operator]
            self.beside.weight.copy_(weight)
            self.straight.fill_(True)

    def forward(self, inputs: Float[Tensor, "batch column"]) -> Float[Tensor, "batch output"]:
        """What the layers make of the inputs, and the linear map where there is one."""
        found = self.layers(inputs)
        return found if self.beside is None else found + self.straight * self.beside(inputs)
