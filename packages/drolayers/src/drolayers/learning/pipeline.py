"""Context → θ → projection → decision: the parts of the paper's figure 1, in one module."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from conelayers.internals import no_unsolved_warnings
from drolayers.ambiguity.nominal import Nominal
from drolayers.layer import Decision, DROLayer
from drolayers.nominal import NominalDistribution
from drolayers.projection import Projection

STAGES = ("learning", "projection", "integer", "layer", "backward")
"""The paper's stages of a training step."""

REMEMBERED = 50_000_000
"""Neighbours of training points that are kept at most; beyond, they are searched for at every step."""

PROBES = (0.3, 3.0, 30.0)
"""Multiples of typical changes of θ by which it is moved to see whether any decision moves."""

MOVES = 1e-6
"""Change of a decision, relative to its size, below which it does not move with a typical change of θ."""


class Pipeline(nn.Module):
    """Model, nominal distribution, projection and layer.

    Args:
        model: from ``z`` to a flat θ.
        nominal: Q_z; None where neither the projection nor the set needs it.
        projection: onto sets that contain Q_z; None leaves θ as the model gives it.
        layer: from θ to the decision.

    Attributes:
        scale: by which the sets are multiplied, about their centres, after the projection.
        share: of the way to the means of Q_z that locations are moved, before the projection.
    """

    _exclude: Tensor
    _index: Tensor
    _weights: Tensor

    def __init__(
        self, model: nn.Module, nominal: NominalDistribution | None, projection: Projection | None, layer: DROLayer
    ) -> None:
        super().__init__()
        self.model, self.nominal, self.projection, self.layer = model, nominal, projection, layer
        self.scale, self.share = 1.0, 0.0
        self.register_buffer("_index", torch.zeros(0, 0, dtype=torch.int64), persistent=False)
        self.register_buffer("_exclude", torch.zeros(0, dtype=torch.int64), persistent=False)
        self.register_buffer("_weights", torch.zeros(0, 0, dtype=torch.float64), persistent=False)

    def remember(self, Z: Float[Tensor, "n dz"], exclude: Int[Tensor, "n"], chunk: int = 512) -> None:
        """Look the neighbours of all points of a training up once, row by row.

        Args:
            Z: contexts of all rows, those for validation included.
            exclude: the training point that each must not see; -1 for none.
            chunk: rows at a time.
        """
        nominal, self._exclude = self.nominal, exclude
        # A distribution of one's own may not be made of weights on its training points.
        if nominal is None or type(nominal).forward is not NominalDistribution.forward:
            return
        if len(Z) * nominal.atoms > REMEMBERED:
            return
        parts = [nominal.neighbours(z, rows) for z, rows in zip(Z.split(chunk), exclude.split(chunk), strict=True)]
        self._index, self._weights = (torch.cat(part) for part in zip(*parts, strict=True))

    def around(self, z: Tensor, rows: Tensor | None = None) -> Nominal | None:
        """Q_z; for rows of the training as it was looked up before."""
        if self.nominal is None:
            return None
        if rows is None:
            return self.nominal(z)
        if not len(self._index):
            return self.nominal(z, exclude=self._exclude[rows] if len(self._exclude) else rows)
        return Nominal(self.nominal.outcomes[self._index[rows]], self._weights[rows]).to(z)

    def theta(
        self, z: Tensor, rows: Tensor | None = None, known: Tensor | None = None, *, nonempty: bool = True
    ) -> Tensor:
        """Predict θ, projected and scaled, of sets that hold their witness.

        Args:
            z: contexts.
            rows: their rows in the training.
            known: their known data as a table, where sets depend on them.
            nonempty: whether sets are made to hold their witness. Scores for a scale of the sets are taken without:
                a scaled set that holds an outcome then still does so once it holds its witness.
        """
        needed = known if self.layer.problem.sets.known else None
        nominal = self.around(z, rows)
        theta = self._sized(self._projected(self.model(z), nominal, needed))
        return self._nonempty(theta, nominal, needed) if nonempty else theta

    def _nonempty(self, theta: Tensor, nominal: Nominal | None, known: Tensor | None) -> Tensor:
        """Let every predicted set hold its witness, whatever model, projection and scale θ comes from."""
        return self.layer.problem.sets.ensure_nonempty(theta, nominal, self._values(known))

    def _sized(self, theta: Tensor) -> Tensor:
        return theta if self.scale == 1.0 else self.layer.problem.sets.scaled(theta, self.scale)

    def _projected(self, theta: Tensor, nominal: Nominal | None, known: Tensor | None) -> Tensor:
        if nominal is None:
            return theta
        if self.share:
            theta = self.layer.problem.sets.towards(theta, nominal, self.share)
        return theta if self.projection is None else self.projection(theta, nominal, self._values(known))

    def stages(
        self,
        z: Tensor,
        rows: Tensor | None = None,
        known: Tensor | None = None,
        resize: Callable[[Tensor], Tensor] | None = None,
    ) -> Iterator[Any]:
        """What a step is made of, one after the other: θ of the model, θ projected and scaled, the decision.

        Args:
            z: contexts.
            rows: their rows in the training.
            known: their known data, as a table.
            resize: what is made of projected sets, in place of a scale for all.
        """
        raw = self.model(z)
        yield raw
        nominal = self.around(z, rows)
        theta = self._nonempty((resize or self._sized)(self._projected(raw, nominal, known)), nominal, known)
        yield theta
        with no_unsolved_warnings():
            # Learners report unsolved rows themselves, of all batches together.
            decision = self.layer(theta, nominal, self._values(known))
        yield decision

    def _values(self, known: Tensor | None) -> Any:
        """Known data by parameter, from a table of it."""
        return None if known is None else self.layer.problem.known_data.values(known)

    def forward(
        self,
        z: Tensor,
        rows: Tensor | None = None,
        known: Tensor | None = None,
        resize: Callable[[Tensor], Tensor] | None = None,
    ) -> Decision:
        """The decision for a batch of contexts, and of known data as a table."""
        *_, decision = self.stages(z, rows, known, resize)
        return decision

    @torch.no_grad()
    def decide(self, z: Tensor, known: Tensor | None = None, chunk: int = 512) -> Decision:
        """The decisions for any number of contexts, without gradients."""
        tables = [None] * len(z.split(chunk)) if known is None else known.split(chunk)
        return Decision.cat([self(part, None, table) for part, table in zip(z.split(chunk), tables, strict=True)])

    def cost_unit(self, z: Tensor, y: Tensor, rows: Tensor | None = None, known: Tensor | None = None) -> float:
        """By how much the costs of the decisions for some contexts differ at their outcomes, on average.

        Where they do not, their size; one where that vanishes too.
        """
        with torch.no_grad(), evaluating(self):
            decision = self(z, rows, known)
        ok = decision.ok.nonzero()[:, 0]
        if not ok.numel():
            return 1.0
        chosen = {v: x[ok] for v, x in decision.best.items()}
        cost = self.layer.problem.loss(chosen, y[ok], self._values(None if known is None else known[ok])).double()
        size, spread = cost.abs().mean(), (cost - cost.mean()).abs().mean()
        found = float(spread if spread > 1e-9 * size else size)
        return found if 0.0 < found < float("inf") else 1.0

    def still(
        self,
        z: Tensor,
        rows: Tensor | None,
        typical: Float[Tensor, "theta"],
        known: Tensor | None = None,
        resize: Callable[[Tensor], Tensor] | None = None,
    ) -> float:
        """The share of contexts whose continuous decisions do not move with θ, by exact derivatives.

        Args:
            z: some contexts.
            rows: their rows in the training.
            typical: changes of θ that are typical.
            known: their known data, as a table.
            resize: what is made of projected sets, in place of a scale for all.
        """
        problem = self.layer.problem
        integers = set(problem.integer_variables)
        free = [*(v for v in problem.variables if v not in integers), *problem.coefficients]
        with torch.no_grad():
            nominal = self.around(z, rows)
            theta = (resize or self._sized)(self._projected(self.model(z), nominal, known))
            theta = self._nonempty(theta, nominal, known)
        if not free:
            return 0.0
        theta.requires_grad_()
        with evaluating(self), no_unsolved_warnings():
            decision = self.layer(theta, nominal, self._values(known))
        ok = decision.ok.nonzero()[:, 0]
        if not ok.numel():
            return 0.0
        generator = torch.Generator().manual_seed(0)
        size, total = torch.zeros(len(z), dtype=theta.dtype, device=theta.device), theta.new_zeros(())
        for v in free:
            value = decision.best[v][ok].reshape(len(ok), -1)
            weight = torch.randn(value.shape[1], generator=generator, dtype=torch.float64).to(value)
            size[ok] += (value.detach() * weight).abs().sum(1)
            total = total + (value * weight).sum()
        with warnings.catch_warnings():
            # That decisions stand still, or have no derivative, is what is asked here.
            warnings.simplefilter("ignore")
            (pulled,) = torch.autograd.grad(total, theta)
        moved = (pulled.abs() * typical.to(pulled)).sum(1)
        return float((moved <= MOVES * size)[ok].double().mean())

    def immovable(
        self, z: Tensor, rows: Tensor | None, typical: Float[Tensor, "theta"], known: Tensor | None = None
    ) -> bool:
        """Return whether no decision for some contexts moves, however far θ does.

        Derivatives of zero alone say less: decisions at a vertex stay for a while and then jump. So θ also moves by
        :data:`PROBES` times typical changes, in both directions.

        Args:
            z: some contexts.
            rows: their rows in the training.
            typical: changes of θ that are typical.
            known: their known data, as a table.
        """
        if self.layer.mixed_integer or self.still(z, rows, typical, known) < 1.0:
            return False
        with torch.no_grad():
            nominal = self.around(z, rows)
            theta = self._sized(self._projected(self.model(z), nominal, known))
        steps = [sign * size * typical.to(theta) for size in PROBES for sign in (1.0, -1.0)]
        found: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad(), evaluating(self):
            for step in (torch.zeros_like(steps[0]), *steps):
                moved = self._nonempty(theta + step, nominal, known)
                decision = self.layer(moved, nominal, self._values(known))
                best = torch.cat([value.reshape(len(z), -1) for value in decision.best.values()], 1)
                found.append((best, decision.ok))
        start, solved = found[0]
        size = start.abs().amax(1).nan_to_num()
        same = [(~ok | ((best - start).abs().amax(1) <= MOVES * size)) for best, ok in found[1:]]
        compared = [ok & solved for _, ok in found[1:]]
        if not all(bool(both.any()) for both in compared):
            return False
        return bool(torch.stack(same)[:, solved].all())

    def nothing(self) -> Tensor:
        """Zero, as a function of all weights: the loss of a process whose share of a batch is empty."""
        return torch.stack([weight.sum() for weight in self.model.parameters()]).sum() * 0.0


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """A module in evaluation for a while; Lightning leaves modules in the mode in which it finds them."""
    before = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(before)


def timed(
    stages: Iterator[Any], now: Callable[[], float] = time.perf_counter
) -> tuple[Tensor, Tensor, Decision, dict[str, float]]:
    """Go through :meth:`Pipeline.stages` with a clock: θ of the model, θ projected, decision, and seconds by stage."""
    clock, found = [now()], []
    for value in stages:
        found.append(value)
        clock.append(now())
    raw, theta, decision = found
    integer = decision.oracle.time if decision.oracle is not None else 0.0
    learning, projection, layer = (b - a for a, b in pairwise(clock))
    seconds = dict(zip(STAGES, (learning, projection, integer, layer - integer), strict=False))
    return raw, theta, decision, seconds
