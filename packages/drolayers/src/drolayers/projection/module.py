"""The projection layer: from any θ to the closest one whose set contains the nominal distribution."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Literal, final, overload

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor, nn

from conelayers import Engine, make_engine
from drolayers.ambiguity.base import AmbiguitySet
from drolayers.ambiguity.centred import Centred
from drolayers.ambiguity.mean_covariance import MeanCovariance
from drolayers.ambiguity.mixture import Around, Mixture
from drolayers.ambiguity.moment_set import MomentSet
from drolayers.ambiguity.nominal import Nominal, Pair
from drolayers.ambiguity.outcomes import Outcomes
from drolayers.ambiguity.reweighted import Divergence
from drolayers.ambiguity.sets import Sets
from drolayers.ambiguity.wasserstein import Wasserstein
from drolayers.amounts import Told
from drolayers.errors import ModelError, ShapeError
from drolayers.known import Known, supported
from drolayers.projection.closed_form import Clip, closed_form
from drolayers.projection.conic import ConeRule
from drolayers.projection.cover import Cover, MomentCover
from drolayers.projection.rule import Report, Rule, Task, raised
from drolayers.status import Status
from drolayers.support import Box, Reals
from drolayers.uncertainty import Uncertain

Method = Literal["auto", "direct", "closed_form", "conic", "clip"]
_METHODS = ("auto", "direct", "closed_form", "conic", "clip")
_TOLERANCE = 1e-11
_OUTSIDE = 1e-6
"""How far, relative to the size of all atoms, one may lie outside the support before that is remarked upon."""


class ProjectionWarning(UserWarning):
    """Some items could not be projected."""


@final
class Projection(nn.Module):
    """The closest θ whose ambiguity set contains the nominal distribution, so that it is never empty.

    It minimises Σ_j w_j (θ_j - θ⁰_j)² subject to (1 + margin)·Σ_n ω_n g_i(y_n, α_i) + absolute ≤ σ_i for every bound.
    A θ that satisfies this is returned unchanged, with the identity as gradient. For a Wasserstein ball the radius is
    raised to (1 + margin)·d + absolute, where d is the distance from the nominal distribution to the support (zero when
    all atoms lie in it) by the ball's own metric, which is kept. Robust outcomes must hold all atoms of positive
    weight: a box moves to the closest one that does, an ellipsoid or a budget grows about its centre, as does the
    factor of ``MeanCovariance``. Where the ends of a box are known data, outcomes of other days may lie outside of
    today's: the nominal distribution is first moved to the nearest one inside. Gradients flow to θ, and to the nominal
    distribution and known data where those need them. A mixture is projected event by event, each set to hold the
    nominal distribution of its own event.

    Args:
        ambiguity: the set; or ``problem.sets``, all sets of a problem, each of which is projected by itself.
        weights: w by parameter name (a number, or an array of the parameter's shape; one where not named), or one flat
            vector. The paper's newsvendor has ``{"0.mu": 5.0, "1.mu": 5.0}``. A set that is raised or grows as a whole
            has no use for them.
        margin: room to the boundary, relative to what the nominal distribution needs; not used for bounds that may be
            negative. With any room the set has a distribution that satisfies every bound strictly (Slater's condition).
        method: ``"closed_form"`` (squared and absolute deviations, linear moments, fixed parameters; an error for
            others), ``"conic"`` (a cone program for every moment), ``"auto"`` (the closed form where there is one, else
            the cone program, else clip: a Conic moment that is not convex in its parameters, a sum of mixed degrees),
            ``"clip"`` (keep α and raise σ: not the closest point, but cheap), or ``"direct"`` (the closed form where
            there is one, else clip: what the learner uses, since a cone program a moment and an item takes longer than
            the decision itself).
        engine: the engine of the cone programs.
        absolute: the same room in units of the bounds.

    Attributes:
        last: the :class:`Report` of the last call: a status an item, and a sentence for each that could not be done.
    """

    def __init__(
        self,
        ambiguity: AmbiguitySet | Sets,
        weights: Mapping[str, ArrayLike] | ArrayLike | None = None,
        margin: float = 0.0,
        method: Method = "auto",
        engine: str | Engine = "auto",
        *,
        absolute: float = 0.0,
    ) -> None:
        super().__init__()
        if isinstance(ambiguity, Sets) and len(ambiguity.members) == 1:
            ambiguity = ambiguity.members[0]
        if not isinstance(ambiguity, MomentSet | Wasserstein | Divergence | Centred | Mixture | Sets):
            who = type(ambiguity).__name__
            raise ModelError(f"Projection needs a set with something to learn, such as dro.MomentSet, not {who}.")
        if method not in _METHODS:
            raise ModelError(f"method must be one of {list(_METHODS)}, not {method!r}.")
        if method == "conic" and isinstance(ambiguity, Centred):
            who = type(ambiguity).__name__
            raise ModelError(f"{who} has a projection in closed form and no other: use method='auto'.")
        for name, value in (("margin", margin), ("absolute", absolute)):
            if not (np.isfinite(value) and value >= 0):
                raise ModelError(f"{name} must be a finite nonnegative number, not {value!r}.")
        self.ambiguity, self.method = ambiguity, method
        self.margin, self.absolute = float(margin), float(absolute)
        self.weights = _weights(ambiguity, weights)
        self.last: Report | None = None
        self._warned = False
        self.rules: tuple[Rule, ...] = ()
        self.each: tuple[Projection | None, ...] = ()
        if isinstance(ambiguity, Sets):
            self.each = _each(ambiguity, self.weights, self.margin, method, engine, self.absolute)
            self.rules = tuple(rule for one in self.each if one is not None for rule in one.rules)
        if isinstance(ambiguity, MomentSet):
            self._names = _public_names(ambiguity)
            made = make_engine(engine)
            self.rules = tuple(self._rule(task, made) for task in self._tasks(ambiguity))
        if isinstance(ambiguity, Mixture):
            self._take_events(ambiguity, engine)

    def _take_events(self, ambiguity: Mixture, engine: str | Engine) -> None:
        """One projection for every event that has something to learn."""
        self.events = nn.ModuleDict()
        for i, (name, part) in enumerate(zip(ambiguity.names, ambiguity.sets, strict=True)):
            if part.size:
                own = {inner: self.weights[f"{name}.{inner}"] for inner in part.parameters}
                self.events[str(i)] = Projection(part, own, self.margin, self.method, engine, absolute=self.absolute)

    def _tasks(self, ambiguity: MomentSet) -> list[Task]:
        """One a moment, with its weights by the moment's own names."""
        tasks = []
        for i, (moment, names) in enumerate(zip(ambiguity.moments, self._names, strict=True)):
            own = {name: self.weights[public] for name, public in names.items()}
            margin = 0.0 if moment.signed else self.margin
            tasks.append(Task(moment, i, ambiguity.y.dim, own, margin, self.absolute))
        return tasks

    def _rule(self, task: Task, engine: Engine) -> Rule:
        """The method for one moment."""
        if self.method == "clip":
            return Clip(task)
        if self.method != "conic" and (found := closed_form(task)) is not None:
            return found
        if self.method == "closed_form":
            raise ModelError(
                f"Moment {task.position}, {task.moment}, has no closed-form projection: use method='auto' or 'conic'."
            )
        if not task.moment.shapes or self.method == "direct":
            return Clip(task)
        # Minimisers are less accurate than minima, so a tighter tolerance is worth its few iterations.
        rule = ConeRule(task, engine.with_tolerance(_TOLERANCE))
        try:
            rule.compiled(1)
        except ModelError:
            if self.method == "conic":
                raise
            return Clip(task)
        return rule

    def extra_repr(self) -> str:
        """The set and the methods in use."""
        used = ", ".join(type(rule).__name__ for rule in self.rules)
        return f"{self.ambiguity}, margin={self.margin:g}, absolute={self.absolute:g}, method={self.method}: {used}"

    @overload
    def forward(self, theta: Tensor, nominal: Pair, known: Known | None = None) -> Tensor: ...
    @overload
    def forward(self, theta: Mapping[str, Tensor], nominal: Pair, known: Known | None = None) -> dict[str, Tensor]: ...
    def forward(
        self, theta: Tensor | Mapping[str, Tensor], nominal: Pair, known: Known | None = None
    ) -> Tensor | dict[str, Tensor]:
        """Project a batch.

        Args:
            theta: ``(batch, ambiguity.size)``, or a dict by name.
            nominal: atoms ``(batch, atom, dim)`` and weights ``(batch, atom)``; for a mixture also a list of these,
                one an event.
            known: values of the known data in the support of y, ``(batch, *shape)`` or one for all; differentiable.
                Other known data of the problem may stand beside them.

        Returns:
            θ in the form and type in which it came.

        Raises:
            ShapeError: wrong shapes, or NaN or infinity in θ or in the nominal distribution.
        """
        flat = self.ambiguity.flat(theta)
        found, report = self._project(flat, nominal, known)
        self.last = report.kept()
        if not self._warned and not bool(self.last.ok.all()):
            self._warned = True
            item, sentence = next(iter(self.last.sentences.items()))
            count = int((~self.last.ok).sum())
            warnings.warn(
                f"{count} of {len(flat)} items could not be projected; item {item}: {sentence}",
                ProjectionWarning,
                stacklevel=2,
            )
        return self.ambiguity.unpack(found) if isinstance(theta, Mapping) else found

    def status(self, theta: Tensor | Mapping[str, Tensor], nominal: Pair, known: Known | None = None) -> Report:
        """What becomes of every item, without gradients."""
        with torch.no_grad():
            return self._project(self.ambiguity.flat(theta), nominal, known)[1]

    def _project(self, flat: Float[Tensor, "batch theta"], nominal: Pair, known: Known | None) -> tuple[Tensor, Report]:
        """The projection and its report."""
        if isinstance(self.ambiguity, Sets):
            return self._project_each(self.ambiguity, flat, nominal, known)
        if isinstance(self.ambiguity, Mixture):
            return self._by_event(self.ambiguity, flat, nominal, known)
        around, told = self.ambiguity.around(nominal, flat), supported(self.ambiguity.y, known, len(flat))
        report = Report(torch.full((len(flat),), int(Status.OPTIMAL), device=flat.device))
        double = flat.double()
        if isinstance(self.ambiguity, Wasserstein):
            least = self.ambiguity.needed(double, around, told)[:, None]
            needed, radius = (1.0 + self.margin) * least + self.absolute, double[:, :1]
            # Known data that is no number, or leaves no support, asks for nothing: such items are masked by the layer.
            asked = (needed > radius) & (needed < torch.inf)
            radius = torch.where(asked, raised(needed, flat.dtype), radius)
            return torch.cat([radius, double[:, 1:]], 1).to(flat.dtype), report
        if isinstance(self.ambiguity, Divergence):
            # The nominal distribution is at no distance from itself.
            least = torch.full_like(double, self.absolute)
            self._look_outside(around, told, report)
            return torch.where(least <= double, double, least).to(flat.dtype), report
        around = _moved(self.ambiguity.y, around, told) if told else around
        if isinstance(self.ambiguity, Centred):
            self._look_outside(around, told, report)
            return self._cover()(flat, around, report), report
        assert isinstance(self.ambiguity, MomentSet)
        found = self.ambiguity.unpack(double)
        sigmas = self.ambiguity.sigmas(double)
        for i, (rule, sigma, names) in enumerate(zip(self.rules, sigmas, self._names, strict=True)):
            alpha = {n: v.expand(len(flat), *v.shape[1:]) for n, v in self.ambiguity.leaf_values(double, i).items()}
            moved, bound = rule.apply(alpha, sigma, around, flat.dtype, report)
            moved["sigma"] = bound.unflatten(1, (rule.task.moment.sides, -1)).amax(1)
            found |= {public: moved[name].reshape(found[public].shape) for name, public in names.items()}
        self._look_outside(around, told, report)
        return (self.ambiguity.pack(found) if found else double).to(flat.dtype), report

    def _project_each(
        self, sets: Sets, flat: Float[Tensor, "batch theta"], nominal: Pair, known: Known | None
    ) -> tuple[Tensor, Report]:
        """Every set by itself; the worst status of an item stands."""
        report, parts = Report(torch.full((len(flat),), int(Status.OPTIMAL), device=flat.device)), sets.parts(flat)
        for k, one in enumerate(self.each):
            if one is not None:
                parts[k], mine = one._project(parts[k], nominal, known)
                report.join(mine, f"In set {sets.names[k]}: " if k else "")
        return torch.cat(parts, 1), report

    def _cover(self) -> Cover | MomentCover:
        """The method for a set around a centre."""
        relative = 1.0 + self.margin
        if isinstance(self.ambiguity, MeanCovariance):
            return MomentCover(self.ambiguity, relative, self.absolute)
        assert isinstance(self.ambiguity, Outcomes)
        return Cover(self.ambiguity, self.weights, relative, self.absolute, self.method == "clip")

    def _by_event(
        self, mixture: Mixture, flat: Float[Tensor, "batch theta"], nominal: Around, known: Known | None
    ) -> tuple[Tensor, Report]:
        """Every set around the nominal distribution of its own event; weights and radius are made possible ones."""
        found, report = (
            mixture.each(nominal, flat),
            Report(torch.full((len(flat),), int(Status.OPTIMAL), device=flat.device)),
        )
        parts = [mixture.possible_own(flat, self.absolute)]
        for i, name in enumerate(mixture.names):
            theta = mixture.theta_of(flat, i)
            if theta.shape[1]:
                if (around := found[i]) is None:
                    raise ShapeError(f"Projection needs a nominal distribution for every event, also for {name!r}.")
                event = self.events[str(i)]
                assert isinstance(event, Projection)
                theta, inner = event._project(theta, around, known)
                report.join(inner, f"In event {name}: ")
            parts.append(theta)
        return torch.cat(parts, 1), report

    def _look_outside(self, nominal: Nominal, known: Told, report: Report) -> None:
        """Remark upon atoms that the set's own support excludes."""
        if isinstance(self.ambiguity.y.support, Reals):
            return
        with torch.no_grad():
            atoms = nominal.atoms.detach()
            allowed = _OUTSIDE * atoms.abs().amax((1, 2))[:, None]
            outside = (self.ambiguity.y.support.violation(atoms, known) > allowed) & (nominal.weights > 0)
        sentence = (
            "The nominal distribution has atoms outside the support of y, so that no moment bound can contain it: "
            "widen the support, or clean the outcomes."
        )
        report.note(outside.any(1), Status.INFEASIBLE, sentence)


def _public_names(ambiguity: MomentSet) -> list[dict[str, str]]:
    """For every moment, the set's names of its own free parameters and bound, which stand in this order."""
    public = iter(ambiguity.parameters)
    return [
        {name: next(public) for name in (*moment.shapes, *(("sigma",) if moment.sigma is None else ()))}
        for moment in ambiguity.moments
    ]


def _each(
    sets: Sets, weights: dict[str, np.ndarray], margin: float, method: Method, engine: str | Engine, absolute: float
) -> tuple[Projection | None, ...]:
    """One projection for every set that has something to learn."""
    left, found = iter(weights.values()), []
    for one in sets.members:
        own = {name: next(left) for name in one.parameters}
        found.append(Projection(one, own, margin, method, engine, absolute=absolute) if own else None)
    return tuple(found)


def _weights(
    ambiguity: AmbiguitySet | Sets, weights: Mapping[str, ArrayLike] | ArrayLike | None
) -> dict[str, np.ndarray]:
    """The weight of every parameter, by public name."""
    shapes = ambiguity.parameters
    if weights is not None and not isinstance(weights, Mapping):
        flat = np.asarray(weights, dtype=float)
        if flat.shape != (ambiguity.size,):
            raise ModelError(f"weights must have shape ({ambiguity.size},), not {flat.shape}, or be a dict by name.")
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
        parts = np.split(flat, ends[:-1])
        weights = {name: part.reshape(shapes[name]) for name, part in zip(shapes, parts, strict=True)}
    given = {name: np.asarray(value, dtype=float) for name, value in (weights or {}).items()}
    if unknown := sorted(set(given) - set(shapes)):
        raise ModelError(f"weights names {unknown}; the set has parameters {list(shapes)}.")
    found = {}
    for name, shape in shapes.items():
        value = given.get(name, np.ones(()))
        if value.shape not in ((), shape) or not (np.isfinite(value).all() and (value > 0).all()):
            raise ModelError(f"The weight of {name!r} must be positive and a number or of shape {shape}.")
        found[name] = np.array(np.broadcast_to(value, shape))
    return found


def _ends(box: Box, atoms: Float[Tensor, "batch atom dim"], known: Told) -> list[Tensor]:
    """Both ends, ready to be compared with atoms."""
    return [end.to(atoms).reshape(-1, 1, atoms.shape[2]) for end in box.ends(atoms.shape[2], known)]


def _moved(y: Uncertain, nominal: Nominal, known: Told) -> Nominal:
    """The nearest nominal distribution in a box of known data; others stay as they are."""
    if not isinstance(y.support, Box):
        return nominal
    lo, hi = _ends(y.support, nominal.atoms, known)
    inside = torch.minimum(torch.maximum(nominal.atoms, lo), hi)
    return Nominal(torch.where(inside.isnan(), nominal.atoms, inside), nominal.weights)
