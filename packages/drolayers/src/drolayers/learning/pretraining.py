"""Prediction-focused training: fit the set to the nominal distribution, without looking at decisions.

The paper's loss has two terms for every moment,

    | E_Q[g_i(y, α_i)] |  +  | E_Q[g_i(y, α_i)] - σ_i |,

the first for the location parameters α, the second for the bound σ (there α is held fixed). First only the first is
used, then both. What is given is not fitted: where σ is, α still is, and the other way round.

The first term says nothing about a matrix A in φ(Ay - μ): it would drive it to zero. There the Gaussian likelihood of
the ellipsoid takes its place, E_Q[½‖Ay - μ‖²] - ½ log det AAᵀ, whose minimiser whitens y. Parameters that nothing
determines (a direction) are left where they are, and so are such a matrix and its μ in a sum or a maximum.

For sets around a centre (``Outcomes``, ``MeanCovariance``) the first term is the squared distance to the centre, and
the second the likelihood of the shape around it: that of the normal distribution of which the set is the multiple that
it is made for.

E_Q is an average over neighbours, which flattens what is curved. Locations can be fitted to the outcomes themselves
instead, which are unbiased; for sets around a centre they, and the shapes, are so unless asked otherwise. Single
outcomes are noisy too, and locations that follow them too long get worse: those are kept at their own best epoch, and
the second term is fitted afterwards. Bounds of moments cannot be fitted to single outcomes, which have no spread.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from conelayers.internals import weighted_mean
from drolayers.ambiguity.base import AmbiguitySet
from drolayers.ambiguity.centred import Centred
from drolayers.ambiguity.image import Matrix
from drolayers.ambiguity.mixture import Mixture
from drolayers.ambiguity.moment import Elementary, Moment
from drolayers.ambiguity.moment_set import MomentSet
from drolayers.ambiguity.nominal import Nominal, Pair
from drolayers.ambiguity.parameters import Learn, Typical, deviation
from drolayers.ambiguity.sets import Sets

Phase = Literal["location", "bound", "both"]
FITTED = MomentSet | Centred
"""Sets that data determine."""


def _learns_matrix(moment: Moment) -> bool:
    """Whether a moment is φ(Ay - μ) with a matrix that is learnt."""
    image = moment.image if isinstance(moment, Elementary) else None
    return isinstance(image, Matrix) and isinstance(image.A, Learn)


def _alone(outcomes: Float[Tensor, "batch dim"]) -> Pair:
    """Every outcome as a distribution of its own."""
    return outcomes[:, None], torch.ones_like(outcomes[:, :1])


class SetLoss(ABC):
    """What fits one set to data: a term for locations, and one for bounds with the locations held fixed.

    Attributes:
        locates: whether a location is to be fitted; where all are given, bounds alone are.
        fits: whether there is anything to be fitted.
        scale: in which the terms are counted.
        likely: whether it is a likelihood.
    """

    locates: bool
    fits: bool
    scale: Tensor
    likely: bool = False

    def __call__(
        self,
        theta: Float[Tensor, "batch theta"],
        nominal: Pair,
        phase: Phase,
        outcomes: Float[Tensor, "batch dim"] | None = None,
        weights: Float[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, ""]:
        """The mean loss of a batch, by the weights of its items.

        Locations, and likelihoods, are fitted to outcomes where they are given.
        """
        single = nominal if outcomes is None else _alone(outcomes)
        # Where a term has nothing to fit there is still something to differentiate.
        loss = 0.0 * theta.sum()
        if phase != "bound":
            loss = loss + self.locations(theta, single, weights)
        if phase != "location":
            loss = loss + self.bounds(theta, single if self.likely else nominal, weights)
        return loss

    def at_outcomes(
        self,
        theta: Float[Tensor, "batch theta"],
        outcomes: Float[Tensor, "batch dim"],
        weights: Float[Tensor, "batch"] | None = None,
    ) -> Tensor:
        """The term of the locations at single outcomes."""
        return self.locations(theta, _alone(outcomes), weights)

    @abstractmethod
    def locations(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair, weights: Tensor | None = None
    ) -> Float[Tensor, ""]:
        """The term of the locations."""

    @abstractmethod
    def bounds(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair, weights: Tensor | None = None
    ) -> Float[Tensor, ""]:
        """The term of everything else."""


@final
class PredictionLoss(SetLoss):
    """The two-term loss of a moment set; relative to typical values, so that no moment drowns another.

    Args:
        ambiguity: the set.
        Y: training outcomes, for typical values.
    """

    def __init__(self, ambiguity: MomentSet, Y: Float[Tensor, "n dim"]) -> None:
        self.ambiguity = ambiguity
        typical = ambiguity.typical(Y)
        self._whitened = [i for i, moment in enumerate(ambiguity.moments) if _learns_matrix(moment)]
        likely = {ambiguity.prefixes[i] + name for i in self._whitened for name in ("A", "mu")}
        self.skipped = [name for name, value in typical.items() if not value.meaningful and name not in likely]
        if self.skipped:
            warnings.warn(
                f"Prediction-focused training leaves {self.skipped} alone: fitting the set to data does not determine "
                "them.",
                stacklevel=3,
            )
        fitted = [name for name in typical if name not in self.skipped and name.split(".")[-1] != "sigma"]
        self.locates = bool(fitted)
        self.fits = bool(fitted) or any(moment.sigma is None for moment in ambiguity.moments)
        self._learnt = [moment.sigma is None for moment in ambiguity.moments for _ in range(moment.bounds)]
        self._located = [i not in self._whitened for i, m in enumerate(ambiguity.moments) for _ in range(m.bounds)]
        centres, scales = (
            ambiguity.pack({name: getattr(value, part)[None] for name, value in typical.items()})
            for part in ("centre", "scale")
        )
        # Where a bound is given, the size of its moment at typical parameters is what it is measured by.
        sizes = ambiguity.values(centres, Y.double()[None])[0].abs().mean(0)
        self.scale = torch.where(torch.tensor(self._learnt), torch.cat(ambiguity.sigmas(scales), 1)[0], sizes)
        # An outcome that is constant has moments of no size: counted in that, it would be all that is fitted. It counts
        # by its own size, which is the unit in which models predict it.
        unit = deviation(Y.double())
        moved = Y.double() + torch.where(unit == Y.double().std(0, unbiased=False), 0.0, unit)
        self.scale = torch.maximum(self.scale, ambiguity.values(centres, moved[None])[0].abs().mean(0))
        self.scale = torch.where(self.scale > 0, self.scale, torch.ones_like(self.scale))

    def bounds(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair, weights: Tensor | None = None
    ) -> Float[Tensor, ""]:
        """The second term."""
        if not any(self._learnt):
            return theta.new_zeros(())
        expected = self._expected(theta.detach(), nominal)
        sigma = torch.cat(self.ambiguity.sigmas(theta), 1)
        missed = ((expected - sigma) / self.scale.to(theta))[:, self._learnt]
        return weighted_mean(missed.abs().sum(1), weights)

    def locations(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair, weights: Tensor | None = None
    ) -> Float[Tensor, ""]:
        """The first term, and for matrices the likelihood."""
        missed = (self._expected(theta, nominal) / self.scale.to(theta))[:, self._located]
        likelihoods = [weighted_mean(self._likelihood(theta, nominal, i), weights) for i in self._whitened]
        return weighted_mean(missed.abs().sum(1), weights) + sum(likelihoods, theta.new_zeros(()))

    def _likelihood(self, theta: Tensor, nominal: Pair, position: int) -> Float[Tensor, "batch"]:
        """The negative logarithm of the Gaussian density of Ay - μ in y, up to a constant."""
        atoms, masses = nominal
        leaves = self.ambiguity.leaf_values(theta, position)
        A, mu = leaves["A"].expand(len(theta), -1, -1), leaves["mu"].expand(len(theta), -1)
        distance = (torch.einsum("bij,bnj->bni", A, atoms.to(theta)) - mu[:, None]).square().sum(2)
        gram = A @ A.mT if A.shape[1] <= A.shape[2] else A.mT @ A
        return 0.5 * (masses.to(theta) * distance).sum(1) - 0.5 * torch.linalg.slogdet(gram).logabsdet

    def _expected(self, theta: Tensor, nominal: Pair) -> Float[Tensor, "batch bound"]:
        """E_Q[g_i(y, α_i)]."""
        atoms, weights = nominal
        values = self.ambiguity.values(self._without(theta, self.skipped), atoms.to(theta))
        return (weights[..., None] * values).sum(1)

    def _without(self, theta: Tensor, names: list[str]) -> Tensor:
        """θ with some parameters held fixed."""
        if not names:
            return theta
        parts = {n: v.detach() if n in names else v for n, v in self.ambiguity.unpack(theta).items()}
        return self.ambiguity.pack(parts)


@final
class GaussianLoss(SetLoss):
    """For sets around a centre: squared distances for the centre, and for the shape around it the normal density.

    The density would weigh distances by the shape that is found so far: centres came out far behind those of squared
    errors (the battery's: decisions of a third less value), and with them the shapes.

    Args:
        ambiguity: the set.
        Y: training outcomes, for units.
    """

    likely = True

    def __init__(self, ambiguity: Centred, Y: Float[Tensor, "n dim"]) -> None:
        self.ambiguity, self.unit = ambiguity, deviation(Y.double())
        self.locates = ambiguity.location in ambiguity.parameters
        self.shapes = ambiguity.extent in ambiguity.parameters
        self.fits = self.locates or self.shapes
        self.scale = torch.ones(ambiguity.y.dim, dtype=torch.float64)
        """Of every coordinate; deviations in units of the set have none of their own."""

    def locations(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair, weights: Tensor | None = None
    ) -> Float[Tensor, ""]:
        """Squared distances to the centre, every coordinate in units of its deviation."""
        atoms, masses = nominal
        away = self.away(theta, atoms) / self.unit.to(atoms.device)
        return weighted_mean((masses.to(away) * away.square().sum(2)).sum(1), weights).to(theta.dtype)

    def bounds(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair, weights: Tensor | None = None
    ) -> Float[Tensor, ""]:
        """E_Q ½‖u‖² + log det, u being deviations from the centre, held fixed, in units of the shape."""
        atoms, masses = nominal
        parts = self.ambiguity.unpack(theta)
        parts = {n: v if n == self.ambiguity.extent else v.detach() for n, v in parts.items()}
        u, size = self.ambiguity.whitened(self.ambiguity.pack(parts), atoms.to(theta))
        return weighted_mean(0.5 * (masses.to(u) * u.square().sum(2)).sum(1) + size, weights).to(theta.dtype)

    def away(self, theta: Tensor, atoms: Float[Tensor, "batch point dim"]) -> Float[Tensor, "batch point dim"]:
        """Deviations from the centre."""
        centre = self.ambiguity.values(theta)[self.ambiguity.location]
        return atoms.to(centre) - centre[:, None]


@final
class MixtureLoss(SetLoss):
    """Those of the events, each around what it allows of the nominal distribution, and how often they come.

    Weights that are learnt are fitted to the shares of the nominal distribution that events allow, where that tells
    them apart. An event that allows nothing of it is left alone, as are balls around data.

    Args:
        ambiguity: the mixture.
        Y: training outcomes, for typical values.
    """

    def __init__(self, ambiguity: Mixture, Y: Float[Tensor, "n dim"]) -> None:
        self.ambiguity = ambiguity
        points = Nominal(Y[:, None].double(), torch.ones(len(Y), 1, dtype=torch.float64))
        mine = ambiguity.allowed(points) > 0
        found = (
            (i, prediction_loss(part, Y[mine[:, i]] if bool(mine[:, i].any()) else Y))
            for i, part in enumerate(ambiguity.sets)
        )
        self._losses = {i: loss for i, loss in found if loss is not None}
        self._weighs = ambiguity.given is None and not bool(mine.all())
        losses = self._losses.values()
        self.locates = self._weighs or any(loss.locates for loss in losses)
        self.fits = self._weighs or any(loss.fits for loss in losses)
        self.scale = torch.cat([torch.zeros(0, dtype=torch.float64), *(loss.scale for loss in losses)])

    def locations(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair, weights: Tensor | None = None
    ) -> Float[Tensor, ""]:
        """How often events come, and the locations of their sets."""
        found = self._each(theta, nominal, lambda loss: loss.locations, weights)
        if not self._weighs:
            return found
        mass = self.ambiguity.allowed(Nominal(*nominal).to(theta))
        missed = self.ambiguity.probabilities(theta) - mass / mass.sum(1, keepdim=True).clamp(min=1e-300)
        return found + weighted_mean(missed.square().sum(1), weights)

    def bounds(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair, weights: Tensor | None = None
    ) -> Float[Tensor, ""]:
        """Those of the events' sets."""
        return self._each(theta, nominal, lambda loss: loss.bounds, weights)

    def _each(
        self,
        theta: Tensor,
        nominal: Pair,
        term: Callable[[SetLoss], Callable[..., Tensor]],
        weights: Tensor | None,
    ) -> Float[Tensor, ""]:
        """One term of all events, each over the items in which it allows something."""
        mixture, around = self.ambiguity, Nominal(*nominal).to(theta)
        mass, each, total = mixture.allowed(around), mixture.each(around, theta), theta.new_zeros(())
        for i, loss in self._losses.items():
            rows, own = (mass[:, i] > 0).nonzero()[:, 0], each[i]
            if len(rows) and loss.fits and own is not None:
                mine = None if weights is None else weights[rows]
                share = len(rows) / len(theta) if mine is None or weights is None else mine.sum() / weights.sum()
                total = total + term(loss)(mixture.theta_of(theta, i)[rows], own.at(rows), mine) * share
        return total


def prediction_loss(ambiguity: AmbiguitySet, Y: Float[Tensor, "n dim"]) -> SetLoss | None:
    """What fits a set to data; None for balls around them, whose radius no data determine."""
    if isinstance(ambiguity, MomentSet):
        return PredictionLoss(ambiguity, Y)
    if isinstance(ambiguity, Mixture):
        return MixtureLoss(ambiguity, Y)
    return GaussianLoss(ambiguity, Y) if isinstance(ambiguity, Centred) else None


class PredictionLosses:
    """The losses of all sets of a problem that data determine, each on its part of θ, added up.

    Args:
        sets: of the problem.
        Y: training outcomes, for typical values.
        locations: what locations are fitted to: Q_z, outcomes, or "auto": outcomes for likelihoods.
    """

    def __init__(
        self, sets: Sets, Y: Float[Tensor, "n dim"], locations: Literal["auto", "nominal", "outcomes"] = "auto"
    ) -> None:
        self.sets, self.locations = sets, locations
        found = ((k, prediction_loss(one, Y)) for k, one in enumerate(sets.members))
        self._losses = {k: loss for k, loss in found if loss is not None}
        losses = self._losses.values()
        self.locates, self.fits = any(loss.locates for loss in losses), any(loss.fits for loss in losses)
        self.averages = any(loss.locates and not loss.likely for loss in losses)
        """Whether "auto" fits some location to means over neighbours."""
        self.scale = torch.cat([torch.zeros(0, dtype=torch.float64), *(loss.scale for loss in losses)])

    def __bool__(self) -> bool:
        return bool(self._losses)

    @property
    def single(self) -> bool:
        """Whether some location is fitted to single outcomes."""
        return any(loss.locates and self._at_outcomes(loss) for loss in self._losses.values())

    def _at_outcomes(self, loss: SetLoss) -> bool:
        """Whether a loss is taken at single outcomes."""
        return self.locations == "outcomes" or (self.locations == "auto" and loss.likely)

    def aims(self, Y: Float[Tensor, "n dim"]) -> dict[str, Float[Tensor, "n ..."]]:
        """Those of all sets whose losses are taken at single outcomes, by the names of all sets' parameters."""
        return {
            self.sets.name(k, name): value
            for k, loss in self._losses.items()
            if self._at_outcomes(loss)
            for name, value in self.sets.members[k].aims(Y).items()
        }

    @torch.no_grad()
    def shapes(self, theta: Float[Tensor, "batch theta"], Y: Float[Tensor, "batch dim"]) -> dict[str, Typical]:
        """Typical shapes of what is left around the centres, by the names of all sets' parameters."""
        found: dict[str, Typical] = {}
        parts = self.sets.parts(theta)
        for k, loss in self._losses.items():
            if isinstance(loss, GaussianLoss) and loss.locates and loss.shapes and self._at_outcomes(loss):
                left = loss.away(parts[k], Y[:, None])[:, 0]
                found[self.sets.name(k, loss.ambiguity.extent)] = loss.ambiguity.typical(left)[loss.ambiguity.extent]
        return found

    def __call__(
        self,
        theta: Float[Tensor, "batch theta"],
        nominal: Pair,
        phase: Phase,
        outcomes: Float[Tensor, "batch dim"] | None = None,
        weights: Float[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, ""]:
        """The mean loss of a batch, by the weights of its items, and of its outcomes where they are known."""
        parts = self.sets.parts(theta)
        found = []
        for k, loss in self._losses.items():
            if loss.fits:
                found.append(loss(parts[k], nominal, phase, outcomes if self._at_outcomes(loss) else None, weights))
        return torch.stack(found).sum()

    def at_outcomes(
        self,
        theta: Float[Tensor, "batch theta"],
        outcomes: Float[Tensor, "batch dim"],
        weights: Float[Tensor, "batch"] | None = None,
    ) -> Tensor:
        """The first terms at single outcomes."""
        parts = self.sets.parts(theta)
        return torch.stack([loss.at_outcomes(parts[k], outcomes, weights) for k, loss in self._losses.items()]).sum()
