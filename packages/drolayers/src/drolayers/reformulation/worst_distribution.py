"""The distribution that attains the worst case, read off the derivatives of f.

For a row k with slope a_k and offset b_k, p_k = ∂f/∂b_k is the mass on which the row is active and m_k = ∂f/∂a_k the
mean of y there, times that mass. So y_k = m_k/p_k is an atom; where p_k vanishes but m_k does not, mass escapes to
infinity and m_k is its direction (mass times distance). Blocks come with atoms of their own: the quantile coupling
joins them without changing costs or moments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from drolayers.ambiguity.base import Mass, Rows
from drolayers.ambiguity.nominal import Nominal
from drolayers.amounts import Told
from drolayers.support import Support

MASS = 1e-7
"""Mass from which a row certainly has an atom."""

FAR = 1e3
"""A row with less mass still has an atom if that lies within this multiple of the others' distance."""

MASS_ERROR = 1e-3
"""Largest difference between one and the sum of the probabilities of a distribution that is returned."""

REACH = 1e-6
"""Mass times distance, relative to the largest, below which there is no direction."""

OUTSIDE = 1e-6
"""Distance from the support, relative to an atom's own, beyond which next to no mass is none."""


@dataclass(frozen=True, eq=False)
class WorstCaseDistribution:
    """Atoms ``(batch, atom, *shape of y)`` and probabilities ``(batch, atom)``; unpacks as that pair.

    ``directions`` hold what escapes to infinity, as mass times distance, and ``escaping_cost`` what it contributes to
    the worst-case cost. Items that could not be solved hold NaN probabilities. ``mass.origin`` tells from which nominal
    atom the mass came.
    """

    mass: Mass
    escaping_cost: Float[Tensor, "batch"]
    shape: tuple[int, ...]

    @property
    def atoms(self) -> Float[Tensor, "batch atom *shape"]:
        """Where the mass lies, in the shape of y; atoms without mass fill up the batch."""
        return _shaped(self.mass.atoms, self.shape)

    @property
    def probabilities(self) -> Float[Tensor, "batch atom"]:
        """How much lies there."""
        return self.mass.probabilities

    @property
    def directions(self) -> Float[Tensor, "batch direction *shape"]:
        """Mass times distance of what escapes to infinity; zeros fill up the batch."""
        return _shaped(self.mass.directions, self.shape)

    def on(self, support: Support, known: Told | None) -> WorstCaseDistribution:
        """Without next to no mass that lies outside of the support: what noise there is in derivatives.

        Args:
            support: of y.
            known: the known data that it holds, by parameter.
        """
        atoms, mass = self.mass.atoms, self.mass.probabilities
        if not atoms.shape[1]:
            return self
        outside = support.violation(atoms, known) > OUTSIDE * atoms.abs().amax(2)
        kept = mass.masked_fill(outside & (mass < MASS), 0.0)
        return replace(self, mass=replace(self.mass, probabilities=kept))

    def verified(self) -> WorstCaseDistribution:
        """Set the probabilities of an item to NaN if they do not sum to one."""
        total = self.mass.probabilities.sum(1, keepdim=True)
        probabilities = self.mass.probabilities.masked_fill((total - 1.0).abs() > MASS_ERROR, torch.nan)
        return replace(self, mass=replace(self.mass, probabilities=probabilities))

    def __iter__(self) -> Iterator[Tensor]:
        yield self.atoms
        yield self.probabilities


def _shaped(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The last dimension in the shape of y."""
    return values.reshape(*values.shape[:2], *shape)


def no_distribution(shape: tuple[int, ...]) -> WorstCaseDistribution:
    """Return the distributions of an empty batch.

    Args:
        shape: of y.
    """
    points = torch.zeros(0, 1, int(np.prod(shape)), dtype=torch.float64)
    masses, origin = points[..., 0], torch.zeros(0, 1, dtype=torch.int64)
    mass = Mass(points, masses, origin, points[:, :0], origin[:, :0])
    return WorstCaseDistribution(mass, masses[:, 0], shape)


def reweighted(
    rows: Rows, shape: tuple[int, ...], nominal: Nominal, masses: Float[Tensor, "batch row"]
) -> WorstCaseDistribution:
    """The nominal atoms with other probabilities: every block of a scenario holds all of its mass.

    Args:
        rows: the rows of all scenarios, scenario by scenario.
        shape: of y.
        nominal: atoms and weights of the scenarios.
        masses: ∂f/∂b, relative to the scenario's weight.
    """
    atoms, weights = (part.detach().double().cpu() for part in nominal)
    batch, count = weights.shape
    ratio = _share(rows, masses.detach().cpu(), count)
    origin = torch.arange(count).expand(batch, -1)
    mass = Mass(atoms, weights * ratio, origin, atoms.new_zeros(batch, 0, atoms.shape[2]), origin[:, :0])
    return WorstCaseDistribution(mass, weights.new_zeros(batch), shape)


def concentrated(
    rows: Rows,
    weights: Float[Tensor, "batch scenario"],
    masses: Float[Tensor, "batch row"],
    means: Float[Tensor, "batch entry"],
) -> tuple[Tensor, Tensor, Tensor]:
    """The same where all mass is at the costliest outcomes, whatever their scenario: each holds what it was given.

    Returns:
        What the scenarios hold, and masses and means relative to that.
    """
    count = weights.shape[1]
    share = _share(rows, masses, count)
    ratio = torch.where(share > MASS, share, torch.ones_like(share))
    each = masses / ratio.repeat_interleave(masses.shape[1] // count, 1)
    mean = means / ratio.repeat_interleave(means.shape[1] // count, 1)
    return weights.to(share) * torch.where(share > MASS, share, torch.zeros_like(share)), each, mean


def _share(rows: Rows, masses: Float[Tensor, "batch row"], count: int) -> Float[Tensor, "batch scenario"]:
    """What every scenario holds, relative to its weight; a cost that does not see y is worst under any distribution."""
    blocks = (int(rows.block.max(initial=-1)) + 1) // count
    return masses.unflatten(1, (count, -1)).sum(2) / blocks if blocks else masses.new_ones(len(masses), count)


def mixture(
    parts: Sequence[WorstCaseDistribution], shares: Float[Tensor, "batch event"], starts: Int[Tensor, "event"]
) -> WorstCaseDistribution:
    """The distributions of all events, each with its probability.

    Args:
        parts: those of the events.
        shares: the probabilities.
        starts: the number of every event's first scenario.
    """
    # What does not happen has no mass, whatever noise there is in its derivatives.
    shares = torch.where(shares <= MASS * 1e-2, torch.zeros_like(shares), shares)

    def weighted(values: list[Tensor]) -> Tensor:
        """Side by side, times the events' probabilities."""
        scaled = []
        for s, value in enumerate(values):
            share = shares[:, s].reshape(-1, *[1] * (value.dim() - 1))
            scaled.append(torch.where(share == 0, torch.zeros_like(value), value * share))
        return torch.cat(scaled, 1)

    masses = [part.mass for part in parts]
    whole = Mass(
        torch.cat([mass.atoms.nan_to_num() for mass in masses], 1),
        weighted([mass.probabilities for mass in masses]),
        torch.cat([mass.origin + start for mass, start in zip(masses, starts, strict=True)], 1),
        weighted([mass.directions for mass in masses]),
        torch.cat([mass.direction_origin + start for mass, start in zip(masses, starts, strict=True)], 1),
    )
    cost = weighted([part.escaping_cost[:, None] for part in parts]).sum(1)
    return WorstCaseDistribution(whole, cost, parts[0].shape)


def worst_distribution(
    rows: Rows,
    shape: tuple[int, ...],
    weights: Float[Tensor, "batch scenario"],
    masses: Float[Tensor, "batch row"],
    means: Float[Tensor, "batch entry"],
    slopes: Float[Tensor, "batch entry"],
    escapes: bool = True,
) -> WorstCaseDistribution:
    """Put atoms and directions together, item by item.

    Args:
        rows: the rows of all scenarios, scenario by scenario.
        shape: of y.
        weights: of the scenarios; a scenario's mass stays its own, and its rows were multiplied by its weight.
        masses: ∂f/∂b, relative to the scenario's weight.
        means: ∂f/∂a, likewise.
        slopes: the slopes a themselves, multiplied by the weight.
        escapes: whether mass may go as far as it likes if it is little enough; else what is next to none is none.
    """
    arrays = [t.detach().cpu().numpy() for t in (weights, masses, means, slopes)]
    dim = int(np.prod(shape))
    items = [_item(rows, dim, escapes, *(a[i] for a in arrays)) for i in range(masses.shape[0])]

    def padded(parts: list[Any]) -> Tensor:
        longest = max((len(p) for p in parts), default=0)
        filled = [np.concatenate([p, np.zeros((longest - len(p), *p.shape[1:]), dtype=p.dtype)]) for p in parts]
        return torch.as_tensor(np.stack(filled)) if filled else torch.zeros(0, 0)

    atoms, probabilities, origin, directions, sources = (padded([item[k] for item in items]) for k in range(5))
    cost = torch.as_tensor(np.array([item[5] for item in items]))
    mass = Mass(atoms, probabilities, origin.long(), directions, sources.long())
    return WorstCaseDistribution(mass, cost, shape)


def _item(
    rows: Rows,
    dim: int,
    escapes: bool,
    weights: NDArray[np.float64],
    masses: NDArray[np.float64],
    means: NDArray[np.float64],
    slopes: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64], float]:
    """Atoms, probabilities, origins, directions, their origins and their cost."""
    layout = rows.layout
    if not (np.isfinite(masses).all() and np.isfinite(means).all()):
        nothing = np.zeros((1, dim)), np.full(1, np.nan), np.zeros(1, dtype=np.int64)
        return *nothing, np.zeros((0, dim)), np.zeros(0, dtype=np.int64), np.nan
    scenarios = weights.size
    blocks_each = (int(rows.block.max()) + 1) // scenarios
    entries_of = np.split(np.arange(layout.row.size), np.flatnonzero(np.diff(layout.row)) + 1)
    largest = max(float(np.abs(means).max(initial=0.0)), 1e-300)
    entry_mass = masses[layout.row]
    solid = entry_mass > 1e-4 * masses.max(initial=0.0)
    distance = FAR * float(np.abs(means[solid] / entry_mass[solid]).max(initial=0.0))
    atoms, probabilities, origin, directions, sources = [], [], [], [], []
    cost = 0.0
    for scenario in range(scenarios):
        parts: list[list[tuple[float, NDArray[np.int64], NDArray[np.float64]]]] = []
        for block in range(blocks_each):
            mine = np.flatnonzero(rows.block == scenario * blocks_each + block)
            kept = []
            for row in mine:
                entries = entries_of[row]
                where, mean = layout.coordinate[entries], means[entries]
                reach = float(np.abs(mean).max(initial=0.0))
                if masses[row] > MASS or (escapes and reach < distance * masses[row]):
                    kept.append((float(masses[row]), where, mean / masses[row]))
                elif escapes and reach > REACH * largest:
                    direction = np.zeros(dim)
                    direction[where] = mean
                    directions.append(direction * weights[scenario])
                    sources.append(scenario)
                    cost += float(slopes[entries] @ mean)
            parts.append(kept)
        for mass, point in _coupled(parts, float(weights[scenario]), dim):
            atoms.append(point)
            probabilities.append(mass)
            origin.append(scenario)
    return (
        np.array(atoms).reshape(-1, dim),
        np.array(probabilities),
        np.array(origin, dtype=np.int64),
        np.array(directions).reshape(-1, dim),
        np.array(sources, dtype=np.int64),
        cost,
    )


def _coupled(
    parts: list[list[tuple[float, NDArray[np.int64], NDArray[np.float64]]]], total: float, dim: int
) -> Iterator[tuple[float, NDArray[np.float64]]]:
    """The quantile coupling: cut the total mass at every block's cumulative sums."""
    if not parts or any(not part for part in parts):
        return
    ends = [np.cumsum([mass for mass, _, _ in part]) for part in parts]
    ends = [end * (total / end[-1]) for end in ends]
    cuts = np.unique(np.concatenate(ends))
    previous = 0.0
    for cut in cuts:
        if cut - previous <= 0.0:
            continue
        point = np.zeros(dim)
        middle = 0.5 * (previous + cut)
        for part, end in zip(parts, ends, strict=True):
            _, where, values = part[min(int(np.searchsorted(end, middle)), len(part) - 1)]
            point[where] = values
        yield float(cut - previous), point
        previous = cut
