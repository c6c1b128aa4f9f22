"""What every nominal distribution Q_z = Σ ω_n(z) δ_{y_n} has in common: data, standardisation, the heaviest atoms.

Those that weigh training points by their distance alone are here too: neighbours and kernels.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import Any, Literal, Self, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from conelayers.internals import check_same_index, finite, number, real, refuse_vmap, row_weights, weighted_mean, whole
from drolayers.ambiguity.nominal import Nominal
from drolayers.errors import ModelError, ShapeError

PADDING = 1_000_000
"""Atoms without weight that are added at most."""

TIED = 0.25
"""Share of the mass, on average, from which on it is told that atoms are chosen among equals."""

PAIRS = 2_000_000
"""Pairs of training points that are looked at for that; few beside what else is done with so many."""


class TiedAtomsWarning(UserWarning):
    """Which training points are atoms depends on the order of the rows, since others would do as well."""


class NominalDistribution(nn.Module, ABC):
    """Weights ω_n(z) over training outcomes; called on ``z (batch, dz)`` it gives atoms and weights.

    Everything that ``fit`` learns is a tensor buffer, so that it is saved with ``state_dict`` (and with any model that
    holds it), moves with ``to(device)``, and is loaded into an object that was never fitted.

    The number of atoms is the same for every call. Where the data cannot fill it (fewer training points, or fewer of
    them in reach), the rest is padded with copies of the heaviest atom whose weight is zero.

    Args:
        max_atoms: keep only the heaviest atoms and renormalise their weights; None keeps all.
        standardize: whether covariates are divided by their standard deviations first; constant columns are left as
            they are, and so have no influence.
    """

    covariates: Tensor
    outcomes: Tensor
    shift: Tensor
    scale: Tensor
    row_weights: Tensor
    places: Tensor

    def __init__(self, max_atoms: int | None, standardize: bool) -> None:
        super().__init__()
        if max_atoms is not None:
            whole("max_atoms", max_atoms)
        self.max_atoms, self.standardize = max_atoms, bool(standardize)
        for name in ("covariates", "outcomes"):
            self.register_buffer(name, torch.zeros(0, 0, dtype=torch.float64))
        for name in ("shift", "scale", "row_weights"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.float64))
        # Of every row of fit the place among those that count, or -1; empty if all count.
        self.register_buffer("places", torch.zeros(0, dtype=torch.int64), persistent=False)

    @abstractmethod
    def learn(self) -> None:
        """Whatever must be prepared once ``covariates`` (standardised) and ``outcomes`` are there."""

    @abstractmethod
    def weigh(
        self, z: Float[Tensor, "batch dz"], exclude: Int[Tensor, "batch"] | None
    ) -> Float[Tensor, "batch training"]:
        """Nonnegative weights of all training points, zero for the excluded ones; not all zero.

        They are multiplied by ``row_weights`` afterwards.
        """

    def preference(
        self, z: Float[Tensor, "batch dz"], weights: Float[Tensor, "batch training"]
    ) -> Float[Tensor, "batch training"]:
        """By what atoms are chosen, the largest first: their weights unless said otherwise."""
        return weights

    @property
    def wanted(self) -> int | None:
        """The number of atoms asked for; None for all."""
        return self.max_atoms

    @property
    def atoms(self) -> int:
        """The number of atoms of every answer."""
        self._check_fitted()
        return len(self.outcomes) if self.wanted is None else self.wanted

    def fit(self, Z: Any, Y: Any, sample_weight: Any = None) -> Self:
        """Take in training data.

        Args:
            Z: covariates ``(N, dz)``; a tensor, an array or a data frame.
            Y: outcomes ``(N, dim)``, or ``(N, rows, columns)`` of a matrix.
            sample_weight: nonnegative weights of the rows ``(N,)``, by which atoms' weights are multiplied; a row of
                weight zero counts as absent. Equal unless given.
        """
        check_same_index({"Z": Z, "Y": Y, "sample_weight": sample_weight})
        covariates = matrix(Z, "Z")
        outcomes = matrix(Y.reshape(len(Y), -1) if getattr(Y, "ndim", 2) == 3 else Y, "Y")
        if len(covariates) != len(outcomes):
            raise ShapeError(f"Z has {len(covariates)} rows and Y has {len(outcomes)}: there must be one for each.")
        if not len(covariates):
            raise ShapeError("fit needs at least one training point.")
        # In place of the old buffers, on their device.
        device = self.covariates.device
        weights = row_weights(sample_weight, len(covariates))
        self.places = torch.zeros(0, dtype=torch.int64, device=device)
        if weights is None:
            weights = torch.ones(len(covariates), dtype=torch.float64)
        elif not bool((counted := weights > 0).all()):
            self.places = torch.where(counted, counted.cumsum(0) - 1, -1).to(device)
            covariates, outcomes, weights = covariates[counted], outcomes[counted], weights[counted]
        weights = weights.to(covariates.device)
        self.shift, self.scale = (t.to(device) for t in self._standardisation(covariates, weights))
        self.row_weights = weights.to(device)
        self.outcomes = outcomes.to(device)
        self.covariates = (covariates.to(device) - self.shift) / self.scale
        self.learn()
        if self.wanted is not None and self.wanted > len(outcomes):
            warnings.warn(
                f"{type(self).__name__} asks for {self.wanted} atoms but has {len(outcomes)} training points: "
                "the rest is padded with atoms of weight zero.",
                stacklevel=2,
            )
        self._tell_ties()
        return self

    def _tell_ties(self) -> None:
        """Warn where much of the mass is at points that are taken, and others left, that are as good as they."""
        atoms, count = self.atoms, len(self.outcomes)
        if atoms >= count:
            return
        some = min(count, max(8, min(64, PAIRS // count)))
        points = self.covariates[torch.linspace(0, count - 1, some, device=self.covariates.device).long()]
        weights = self._masses(points, None)
        order, heaviest = self.preference(points, weights), weights.topk(atoms, dim=1).values
        best = order.topk(atoms + 1, dim=1).values
        last = best[:, atoms - 1 : atoms]
        tied = (best[:, :atoms] == last).sum(1) * (best[:, atoms] == last[:, 0])
        mass = tied * heaviest[:, -1] / heaviest.sum(1)
        if float(mass.mean()) > TIED:
            alike = (order >= last).sum(1)[mass > 0]
            warnings.warn(
                f"{type(self).__name__} takes its {atoms} atoms from training points that are equally good, up to "
                f"{int(alike.max())} of them for one context, so that the order of the rows decides: "
                "ask for more atoms (k, max_atoms), or tell contexts apart by further columns.",
                TiedAtomsWarning,
                stacklevel=3,
            )

    def _masses(self, z: Tensor, exclude: Tensor | None) -> Float[Tensor, "batch training"]:
        """Weights of all training points, those of their rows included."""
        masses = self.weigh(z, exclude) * self.row_weights
        if not bool((masses > 0).any(1).all()):
            raise ModelError(f"{type(self).__name__} gives no training point a positive weight for some context.")
        return masses

    def _standardisation(self, covariates: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Shift and scale of every column."""
        if not self.standardize:
            return torch.zeros_like(covariates[0]), torch.ones_like(covariates[0])
        mean = weighted_mean(covariates, weights)
        deviation = weighted_mean((covariates - mean).square(), weights).sqrt()
        # A constant column has a deviation of rounding errors only.
        constant = deviation <= 1e-12 * covariates.abs().amax(0)
        return mean, torch.where(constant, torch.ones_like(deviation), deviation)

    def forward(self, z: Float[Tensor, "batch dz"], exclude: Int[Tensor, "batch"] | None = None) -> Nominal:
        """Atoms, heaviest first, and their weights, which add up to one; in the type and on the device of ``z``.

        Args:
            z: covariates.
            exclude: for every item the training point (its row in ``fit``) that it must not see, so that a training
                point can be asked about without itself; -1 for none.
        """
        index, weights = self.neighbours(z, exclude)
        return Nominal(self.outcomes[index], weights).to(z)

    @torch.no_grad()
    def neighbours(
        self, z: Float[Tensor, "batch dz"], exclude: Int[Tensor, "batch"] | None = None
    ) -> tuple[Int[Tensor, "batch atom"], Float[Tensor, "batch atom"]]:
        """The same as rows of ``outcomes``: which ones, and their weights."""
        self._check_fitted()
        points = self._standardised(z)
        hidden = None if exclude is None else self._checked_exclude(exclude, len(points))
        raw = self._masses(points, hidden)
        weights, index = raw.topk(min(self.atoms, raw.shape[1]), dim=1)
        if self.atoms > weights.shape[1]:
            missing = self.atoms - weights.shape[1]
            if missing > PADDING:
                raise ModelError(
                    f"{type(self).__name__} asks for {self.atoms} atoms and has {raw.shape[1]} training points: ask "
                    "for fewer."
                )
            weights = nn.functional.pad(weights, (0, missing))
            index = nn.functional.pad(index, (0, missing))
        # Atoms without weight may be anything; a copy of the heaviest lies in every support that the others do.
        return torch.where(weights > 0, index, index[:, :1]), weights / weights.sum(1, keepdim=True)

    def _standardised(self, z: Tensor) -> Tensor:
        """Checked covariates in the units of the training data."""
        real("z", z)
        width = self.covariates.shape[1]
        if not isinstance(z, Tensor) or not z.is_floating_point() or z.dim() != 2 or z.shape[1] != width:
            shape = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise ShapeError(f"z must be a floating-point tensor of shape (batch, {width}), not {shape}.")
        refuse_vmap(z)
        if not bool(z.isfinite().all()):
            where = (~z.isfinite().all(1)).nonzero()[:8, 0].tolist()
            raise ShapeError(f"z holds NaN or infinity in items {where}.")
        return (z.detach().to(self.shift) - self.shift) / self.scale

    def _checked_exclude(self, exclude: Tensor, batch: int) -> Tensor:
        """Indices of training points, one an item."""
        hidden = torch.as_tensor(exclude, device=self.covariates.device)
        count = len(self.places) or len(self.covariates)
        if hidden.shape != (batch,) or hidden.is_floating_point() or hidden.dtype == torch.bool:
            raise ShapeError(f"exclude must hold one whole number for each of the {batch} items, -1 for none.")
        if bool(((hidden < -1) | (hidden >= count)).any()):
            raise ShapeError(f"exclude must lie between -1 and {count - 1}, the rows of the training data.")
        hidden = hidden.long()
        if len(self.places):
            hidden = torch.where(hidden >= 0, self.places[hidden], -1)
        if len(self.covariates) == 1 and bool((hidden == 0).any()):
            raise ShapeError("The only training point cannot be excluded: there would be no atom left.")
        return hidden

    def _check_fitted(self) -> None:
        if not len(self.covariates):
            raise ModelError(f"This {type(self).__name__} has no data yet: call fit(Z, Y) or load a state first.")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take the shapes of the saved buffers, since they depend on the data."""
        for name, buffer in self.named_buffers(recurse=False):
            saved = state_dict.get(prefix + name)
            if saved is not None and saved.shape != buffer.shape:
                setattr(self, name, buffer.new_zeros(saved.shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)
        *_, errors = rest
        if why := self.misfit():
            errors.append(f"{prefix}{why}")

    def misfit(self) -> str | None:
        """What is wrong with what was learnt or loaded, in a few words; None if all fits together."""
        points = len(self.covariates) if self.covariates.dim() else -1
        if not points and not self.outcomes.numel():
            return None
        tables = {name: getattr(self, name) for name in ("covariates", "outcomes", "shift", "scale", "row_weights")}
        shapes = [tuple(table.shape) for table in tables.values()]
        width, dim = (shape[1] if len(shape) == 2 else -1 for shape in shapes[:2])
        if shapes != [(points, width), (points, dim), (width,), (width,), (points,)] or dim == 0:
            return f"{', '.join(tables)} have shapes {shapes}, which do not fit together"
        if not all(bool(table.isfinite().all()) for table in tables.values()):
            return f"{', '.join(tables)} hold NaN or infinity"
        positive = bool((self.scale > 0).all()) and bool((self.row_weights > 0).all())
        return None if positive else "scale and row_weights must be positive"


@final
class KNN(NominalDistribution):
    """The outcomes of the k nearest training points, each of weight 1/k, times the weights of their rows.

    Args:
        k: number of neighbours; with fewer training points all of them, padded with atoms of weight zero.
        max_atoms: a further cap; the nearest are kept.
        standardize: whether covariates are standardised before distances are taken.
    """

    def __init__(self, k: int, max_atoms: int | None = None, standardize: bool = True) -> None:
        super().__init__(max_atoms, standardize)
        whole("k", k)
        self.k = k

    @property
    def wanted(self) -> int:
        """K, or the cap."""
        return self.k if self.max_atoms is None else min(self.k, self.max_atoms)

    def learn(self) -> None:
        """Nothing beyond the data."""

    def weigh(
        self, z: Float[Tensor, "batch dz"], exclude: Int[Tensor, "batch"] | None
    ) -> Float[Tensor, "batch training"]:
        """One for the nearest, zero for the others."""
        away = distances(z, self.covariates, exclude)
        nearest, index = away.topk(min(self.wanted, away.shape[1]), dim=1, largest=False)
        return torch.zeros_like(away).scatter(1, index, nearest.isfinite().to(away))

    def preference(
        self, z: Float[Tensor, "batch dz"], weights: Float[Tensor, "batch training"]
    ) -> Float[Tensor, "batch training"]:
        """The nearest first."""
        return -distances(z, self.covariates, None)


@final
class Kernel(NominalDistribution):
    """Training outcomes weighted by a kernel of the distance ‖z - z_n‖ = d.

    ``"gaussian"`` is exp(-d²/2h²), ``"epanechnikov"`` is (1 - d²/h²)⁺. A point with nothing in reach of the kernel gets
    its nearest neighbour.

    Args:
        kind: the kernel.
        bandwidth: h, in units of the standardised covariates; or a rule, ``"silverman"`` (the default) or ``"scott"``.
            With weights w of rows a rule counts (Σw)²/Σw² points (Kish).
            For Epanechnikov's kernel a rule's h is widened by √(dz + 4), so that both kernels have one variance.
        max_atoms: keep the heaviest atoms only; None keeps every training point.
        standardize: whether covariates are standardised before distances are taken.
    """

    width: Tensor

    def __init__(
        self,
        kind: Literal["gaussian", "epanechnikov"] = "gaussian",
        bandwidth: float | Literal["silverman", "scott"] = "silverman",
        max_atoms: int | None = 50,
        standardize: bool = True,
    ) -> None:
        super().__init__(max_atoms, standardize)
        if kind not in ("gaussian", "epanechnikov"):
            raise ModelError(f"kind must be 'gaussian' or 'epanechnikov', not {kind!r}.")
        named = isinstance(bandwidth, str)
        if not (bandwidth in ("silverman", "scott") if named else 0 < number("bandwidth", bandwidth) < np.inf):
            raise ModelError(
                f"bandwidth must be a positive and finite number, 'silverman' or 'scott', not {bandwidth!r}."
            )
        self.kind, self.bandwidth = kind, bandwidth
        self.register_buffer("width", torch.ones((), dtype=torch.float64))

    def learn(self) -> None:
        """The bandwidth h = c N^(-1/(dz+4)) times the deviation of the covariates, c of the rule."""
        if not isinstance(self.bandwidth, str):
            self.width = torch.full_like(self.width, self.bandwidth)
            return
        dz = self.covariates.shape[1]
        count = float(self.row_weights.sum() ** 2 / self.row_weights.square().sum())
        factor = (4.0 / (dz + 2.0)) ** (1.0 / (dz + 4.0)) if self.bandwidth == "silverman" else 1.0
        if self.kind == "epanechnikov":
            factor *= float(np.sqrt(dz + 4.0))
        mean = weighted_mean(self.covariates, self.row_weights)
        spread = weighted_mean((self.covariates - mean).square(), self.row_weights).mean().sqrt()
        # Without any spread all points are equally near, whatever the width.
        self.width = torch.where(spread > 0, spread, torch.ones_like(spread)) * factor * count ** (-1.0 / (dz + 4.0))

    def weigh(
        self, z: Float[Tensor, "batch dz"], exclude: Int[Tensor, "batch"] | None
    ) -> Float[Tensor, "batch training"]:
        """The kernel of the distances."""
        squared = (distances(z, self.covariates, exclude) / self.width).square()
        if self.kind == "gaussian":
            # Relative to the nearest point, so that a far z does not underflow.
            return torch.exp(-0.5 * (squared - squared.amin(1, keepdim=True)))
        weights = (1.0 - squared).clamp(min=0.0)
        nearest = torch.zeros_like(weights).scatter(1, squared.argmin(1, keepdim=True), 1.0)
        return torch.where(weights.sum(1, keepdim=True) > 0, weights, nearest)

    def misfit(self) -> str | None:
        """A width is one positive number."""
        right = not self.width.dim() and 0 < float(self.width) < np.inf
        return super().misfit() or (None if right else "width must be one positive number")


def distances(z: Tensor, covariates: Tensor, exclude: Tensor | None) -> Float[Tensor, "batch training"]:
    """Euclidean distances to all training points, infinite for the excluded ones."""
    # Differences rather than products: equal points must be at distance zero.
    found = torch.cdist(z, covariates, compute_mode="donot_use_mm_for_euclid_dist")
    return found if exclude is None else found.masked_fill(excluded(exclude, found.shape[1]), torch.inf)


def excluded(exclude: Tensor, count: int) -> Tensor:
    """The mask of excluded training points, ``(batch, training)``."""
    return torch.arange(count, device=exclude.device) == exclude[:, None]


def matrix(value: Any, name: str) -> Float[Tensor, "row column"]:
    """A table of numbers as a float64 tensor."""
    real(name, value)
    try:
        found = value.detach().double() if isinstance(value, Tensor) else torch.tensor(np.asarray(value, dtype=float))
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{name} must be a table of numbers: {error}") from error
    if found.dim() != 2 or not found.shape[1]:
        raise ShapeError(f"{name} must have shape (N, columns), not {tuple(found.shape)}.")
    finite(name, found)
    return found.clone()
