"""All sets of a problem, each with its part of θ: the cost's, and those that its other worst cases name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

import cvxpy as cp
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from drolayers.ambiguity.base import AmbiguitySet, beyond
from drolayers.ambiguity.mixture import Mixture
from drolayers.ambiguity.nominal import Nominal, Pair
from drolayers.ambiguity.parameters import Typical
from drolayers.ambiguity.theta import Theta
from drolayers.ambiguity.wasserstein import Wasserstein
from drolayers.amounts import Told
from drolayers.errors import ModelError
from drolayers.uncertainty import Uncertain


def check_sets(sets: Iterable[Any], y: Uncertain) -> None:
    """Refuses what is no set, and sets over another uncertain vector."""
    for other in sets:
        if not isinstance(other, AmbiguitySet):
            raise ModelError(f"ambiguity= must be a set such as dro.MomentSet, not {type(other).__name__}.")
        if other.y is not y:
            raise ModelError(
                f"{other} is a set over another uncertain vector than the cost's: make both from one dro.Uncertain."
            )


@final
class Sets(Theta):
    """Several sets over one ``y`` as one θ: what is asked of a set is asked of each with its own part.

    The first set's parameters keep their names, those of the others begin with the set's name (``set1.``, ``set2.``, …
    unless :meth:`AmbiguitySet.named` gave one). One nominal distribution serves all.

    Args:
        members: the sets, that of the cost first.
        distances: sets whose distance has a price somewhere, rather than a radius; that takes no part of θ.

    Attributes:
        needs_nominal: whether atoms and weights travel beside θ.
        atoms: number of atoms of the nominal distribution; zero where no set needs one.
        known: the known data on which supports depend.
    """

    def __init__(self, members: Sequence[AmbiguitySet], distances: Sequence[AmbiguitySet] = ()) -> None:
        self.members = tuple(members)
        self.y: Uncertain = self.members[0].y
        check_sets((*self.members, *distances), self.y)
        for ball in distances:
            if not isinstance(ball, Wasserstein):
                raise ModelError(
                    f"dro.fragility needs a dro.Wasserstein, as ambiguity= or as the problem's set, not {ball}: that "
                    "says what a distance between distributions is."
                )
        self._priced = tuple((ball, ball.priced()) for ball in distances if isinstance(ball, Wasserstein))
        self._all = *self.members, *(twin for _, twin in self._priced)
        self.names = ("", *(other.name or f"set{k}" for k, other in enumerate(self.members[1:], 1)))
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise ModelError(f"Two sets of the problem are named {twice[0]!r}: give each a name of its own.")
        self._prefixes = [f"{name}." if name else "" for name in self.names]
        needy = [other for other in self._all if other.needs_nominal]
        self.needs_nominal = bool(needy)
        self.known = tuple({p.id: p for other in self.members for p in other.known}.values())
        if len(needy) > 1 and any(isinstance(other, Mixture) for other in needy):
            raise ModelError(
                "A dro.Mixture around nominal distributions, one an event, cannot stand beside other sets around one: "
                "give moments or outcomes to either."
            )
        # Events of a mixture may have nominal distributions of different sizes.
        counts = sorted({getattr(other, "atoms", 0) for other in needy})
        if len(counts) > 1:
            raise ModelError(
                f"The sets of the problem have {' and '.join(map(str, counts))} atoms: one nominal distribution serves "
                "all, so give them one number."
            )
        self.atoms: int = counts[0] if counts else 0
        self.parameters: dict[str, tuple[int, ...]] = {}
        for other, prefix in zip(self.members, self._prefixes, strict=True):
            shapes = {f"{prefix}{name}": shape for name, shape in other.parameters.items()}
            if common := sorted(shapes.keys() & self.parameters.keys()):
                raise ModelError(f"Two parameters of the problem are called {common[0]!r}: name events and sets apart.")
            self.parameters |= shapes
        self.features: tuple[cp.Parameter, ...] = tuple(f for other in self._all for f in other.features)

    def __repr__(self) -> str:
        named = (
            f"{name}: {other}" if name else str(other) for name, other in zip(self.names, self.members, strict=True)
        )
        return ", ".join(named)

    def around(self, nominal: Pair | None, theta: Float[Tensor, "batch theta"]) -> Nominal:
        """The nominal distributions of a batch, checked by a set that needs them."""
        asked = next((other for other in self._all if other.needs_nominal), self.members[0])
        return asked.around(nominal, theta)

    def parts(self, theta: Float[Tensor, "batch theta"]) -> list[Float[Tensor, "batch part"]]:
        """Every set's part of θ."""
        self.check(theta)
        return list(theta.split([other.size for other in self.members], 1))

    def name(self, k: int, parameter: str) -> str:
        """What a parameter of the k-th set is called among those of all."""
        return f"{self._prefixes[k]}{parameter}"

    def priced(self, ball: AmbiguitySet) -> Wasserstein:
        """The set whose multiplier is the price of a distance."""
        return next(twin for one, twin in self._priced if one is ball)

    def feature_values(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None
    ) -> Float[Tensor, "batch feature"]:
        """The features of all sets, one after another."""
        parts = [*self.parts(theta), *[theta[:, :0]] * len(self._priced)]
        pairs = zip(self._all, parts, strict=True)
        return torch.cat([other.feature_values(part, nominal) for other, part in pairs], 1)

    def typical(self, y: Float[Tensor, "point dim"]) -> dict[str, Typical]:
        """Sensible values of all parameters for some outcomes, by name."""
        pairs = zip(self.members, self._prefixes, strict=True)
        return {f"{prefix}{n}": value for other, prefix in pairs for n, value in other.typical(y).items()}

    def aims(self, y: Float[Tensor, "batch dim"]) -> dict[str, Float[Tensor, "batch ..."]]:
        """The values of learnt locations that fit every outcome by itself, by name."""
        pairs = zip(self.members, self._prefixes, strict=True)
        return {f"{prefix}{n}": value for other, prefix in pairs for n, value in other.aims(y).items()}

    def towards(self, theta: Float[Tensor, "batch theta"], nominal: Pair, share: float) -> Float[Tensor, "batch theta"]:
        """θ with locations moved by a share of the way to what the mean of the nominal distribution says."""
        around = Nominal.of(nominal, self.y.dim, len(theta), 0).to(theta.device)
        aims, parts = self.aims(around.mean(around.atoms)), self.unpack(theta)
        return self.pack(parts | {name: torch.lerp(parts[name], aim.to(theta), share) for name, aim in aims.items()})

    def ensure_nonempty(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair | None = None, known: Told | None = None
    ) -> Float[Tensor, "batch theta"]:
        """θ of sets that are not empty: every member by itself holds its witness.

        Raises:
            ShapeError: θ holds NaN or infinity.
        """
        theta = self.flat(theta)
        pairs = zip(self.members, self.parts(theta), strict=True)
        parts = [other.ensure_nonempty(part, nominal, known) if other.size else part for other, part in pairs]
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    def scaled(self, theta: Float[Tensor, "batch theta"], factor: float | Tensor) -> Float[Tensor, "batch theta"]:
        """θ of sets ``factor`` times as large, each about its own centre; those without parameters stay."""
        pairs = zip(self.members, self.parts(theta), strict=True)
        return torch.cat([other.scaled(part, factor) if other.size else part for other, part in pairs], 1)

    def scores(
        self, theta: Float[Tensor, "batch theta"], y: Float[Tensor, "batch dim"], known: Told | None = None
    ) -> Float[Tensor, "batch"]:
        """The smallest t for which every set, scaled by t, holds an outcome by itself; differentiable."""
        found = self.scores_anywhere(theta, y)
        return found.masked_fill(beyond(self.y, y, known).to(found.device), torch.inf)

    def scores_anywhere(
        self, theta: Float[Tensor, "batch theta"], y: Float[Tensor, "batch dim"]
    ) -> Float[Tensor, "batch"]:
        """The scores of outcomes, wherever the support ends."""
        pairs = zip(self.members, self.parts(theta), strict=True)
        return torch.stack([other.scores_anywhere(part, y) for other, part in pairs]).amax(0)

    def suspect(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None = None, known: Told | None = None
    ) -> Bool[Tensor, "batch"]:
        """Items with a set that may be empty although their program looks solvable."""
        pairs = zip(self.members, self.parts(theta), strict=True)
        return torch.stack([other.suspect(part, nominal, known) for other, part in pairs]).any(0)

    def unsettled(
        self, theta: Float[Tensor, "batch theta"], nominal: Nominal | None, known: Told | None, which: Sequence[int]
    ) -> Bool[Tensor, "batch"]:
        """Items in which some of the sets, by their numbers, are not seen at once to hold a distribution."""
        parts, found = self.parts(theta), theta.new_zeros(len(theta), dtype=torch.bool)
        for k in which:
            found |= ~self.members[k].settled(parts[k], nominal, known)
        return found

    def emptiness(
        self, theta: Float[Tensor, "batch theta"], nominal: Pair | None, known: Told | None = None
    ) -> Float[Tensor, "batch set"]:
        """By how much, relatively, the bounds of every set must be relaxed for it to be non-empty."""
        pairs = zip(self.members, self.parts(theta), strict=True)
        return torch.stack([other.emptiness(part, nominal, known).cpu() for other, part in pairs], 1)
