"""One of several policies, or a scale of its sets, chosen by cross-validation on a criterion that the user names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import clone
from sklearn.model_selection import check_cv
from torch import Tensor

from conelayers.internals import no_unsolved_warnings, number
from drolayers.errors import ModelError
from drolayers.known import Known
from drolayers.learning.calibration import Calibration, checked_scales
from drolayers.learning.data import Examples, check_in_support, examples
from drolayers.learning.learner import DecisionFocusedLearner
from drolayers.learning.objectives import Criterion, Mean
from drolayers.learning.settings import Stage
from drolayers.problem import DecisionProblem

Named = Literal["mean"] | Criterion | Callable[[Any, Any, Any], float]


@final
@dataclass(frozen=True)
class Candidate:
    """What cross-validation says of one candidate.

    Attributes:
        name: its name, or its number in the list.
        scale: of its sets; None where none was tried.
        value: the criterion of the costs of all rows that were left out; infinite where one has no decision.
        error: the standard error of its mean over the parts; NaN for a single one, and where the value is infinite.
        undecided: rows without a decision.
        infinite: rows whose decision costs infinitely much.
    """

    name: str
    scale: float | None
    value: float
    error: float
    undecided: int
    infinite: int = 0

    @property
    def why(self) -> str:
        """What keeps it from being chosen, in words; empty where nothing does."""
        told = [f"{self.undecided} rows have no decision"] if self.undecided else []
        told += [f"{self.infinite} rows cost infinitely much"] if self.infinite else []
        return " and ".join(told) or ("" if np.isfinite(self.value) else "the criterion is infinite")


@final
@dataclass(frozen=True, eq=False)
class Choice:
    """What was chosen.

    Attributes:
        best: the policy, trained on all data and, where scales were tried, with the best of them; None unless refitted.
        chosen: what cross-validation says of it.
        candidates: the same of all.
    """

    best: Any
    chosen: Candidate
    candidates: tuple[Candidate, ...]

    def __str__(self) -> str:
        lines = []
        for one in self.candidates:
            scale = "" if one.scale is None else f" at scale {one.scale:g}"
            mark = "*" if one is self.chosen else " "
            told = f"{one.value:.4g}, since {one.why}" if one.why else f"{one.value:.4g} ± {one.error:.2g}"
            lines.append(f"{mark} {one.name}{scale}: {told}")
        return "\n".join(lines)


def choose(
    candidates: Any,
    Z: Any,
    Y: Any,
    *,
    criterion: Named = "mean",
    cv: Any = 5,
    scales: Sequence[float] | None = None,
    known: Known | None = None,
    groups: Any = None,
    refit: bool = True,
) -> Choice:
    """Choose a policy, or the scale of its sets, by the costs of its decisions on rows that it was not trained on.

    Every candidate is trained once a part; scales are tried on what was trained, which costs decisions only. The
    criterion is taken of the costs of all parts together, so that a tail is that of all data.

    Args:
        candidates: a policy that is not fitted, a list of them, or a dict by name: a ``dro.DecisionFocusedLearner``, or
            one of ``dro.baselines``. They may have sets of their own; costs must be comparable.
        Z: contexts.
        Y: outcomes.
        criterion: what is to be small: "mean", ``dro.objectives.CVaR(level)``, ``dro.objectives.Shift(radius)``, or a
            function of costs, contexts and outcomes (arrays), such as the mean cost under weights for a known shift.
        cv: number of parts, or a splitter of scikit-learn; a number is taken in order, without shuffling.
        scales: of the sets, tried one by one, about their centres (a ball's radius); learners only.
        known: values of ``problem.known``, one row a context.
        groups: passed to the splitter.
        refit: whether the best is trained on all data at the end.
    """
    named = _named(candidates, scales is None)
    sizes: tuple[float | None, ...] = (None,) if scales is None else checked_scales(scales)
    told = _criterion(criterion)
    splitter = check_cv(cv)
    found: list[Candidate] = []
    for name, policy in named.items():
        data = examples(policy.problem, Z, Y, known)
        check_in_support(policy.problem, data)
        costs: dict[float | None, list[Tensor]] = {size: [] for size in sizes}
        tested = []
        for training, rest in splitter.split(data.Z.numpy(), data.Y.numpy(), groups):
            rows = torch.as_tensor(rest)
            tested.append(rows)
            fitted = _fitted(policy, data[torch.as_tensor(training)])
            for size in sizes:
                costs[size].append(_costs(_scaled(fitted, size, len(training)), data[rows]))
        found += [_judged(name, size, costs[size], tested, data, told) for size in sizes]
    chosen = min(found, key=lambda one: one.value)
    if not np.isfinite(chosen.value):
        reasons = "; ".join(dict.fromkeys(f"candidate {one.name}: {one.why}" for one in found))
        raise ModelError(
            f"No candidate can be chosen ({reasons}): see policy.decide(Z) and problem.loss for the rows, and give "
            "other candidates, scales= or a criterion that is finite."
        )
    best = None
    if refit:
        best = clone(named[chosen.name]).fit(Z, Y, known=known)
        best = _scaled(best, chosen.scale, len(Z))
    return Choice(best, chosen, tuple(found))


def _named(candidates: Any, as_trained: bool) -> dict[str, Any]:
    """Policies by name, with sets of the size that they were trained with or of several that are tried."""
    if isinstance(candidates, Mapping):
        named = {str(name): policy for name, policy in candidates.items()}
        if len(named) < len(candidates):
            raise ModelError(f"Two candidates have one name as text, of {list(candidates)}: give each its own.")
    else:
        listed = list(candidates) if isinstance(candidates, list | tuple) else [candidates]
        named = {str(k): policy for k, policy in enumerate(listed)}
    for name, policy in named.items():
        fits = all(hasattr(policy, part) for part in ("fit", "decide"))
        if not fits or not isinstance(getattr(policy, "problem", None), DecisionProblem):
            raise ModelError(f"Candidate {name} is no policy such as a dro.DecisionFocusedLearner: {policy!r}.")
        stage = policy.training if isinstance(policy, DecisionFocusedLearner) else None
        if as_trained and isinstance(stage, Stage) and stage.coverage is not None:
            raise ModelError(
                f"Candidate {name} is trained with Stage(coverage=...), which leaves sets without a size, and choose "
                "holds out no rows to calibrate it on: give the sizes to try as scales=, or fit it yourself with "
                "calibration_share=0.2 and compare costs on rows of your own."
            )
    if not named:
        raise ModelError("choose needs at least one candidate.")
    return named


def _criterion(criterion: Named) -> Callable[[Tensor, Examples], float]:
    """A function of costs and the rows that they belong to."""
    found = Mean() if isinstance(criterion, str) and criterion == "mean" else criterion
    if isinstance(found, Criterion) and not isinstance(found, type):
        of = found.of
        return lambda costs, rows: float(of(costs))
    if isinstance(found, str | type) or not callable(found) or hasattr(found, "level"):
        raise ModelError(
            f"criterion must be 'mean', dro.objectives.CVaR, dro.objectives.Shift or a function of costs, Z and Y, not "
            f"{criterion!r}."
        )
    own = found

    def value(costs: Tensor, rows: Examples) -> float:
        told = own(costs.numpy(), rows.Z.numpy(), rows.Y.numpy())
        if np.ndim(told):
            raise ModelError(f"criterion must return one number for all costs, not an array of shape {np.shape(told)}.")
        return number("What criterion returns", told)

    return value


def _fitted(policy: Any, data: Examples) -> Any:
    """A copy that was trained on a part; the folder of a training is for the last one."""
    made = clone(policy)
    if isinstance(made, DecisionFocusedLearner):
        made.set_params(trainer=made.trainer.but(directory=None, resume=False))
    return made.fit(data.Z, data.Y, known=made.problem.known_data.values(data.known))


def _scaled(fitted: Any, scale: float | None, rows: int) -> Any:
    """The same learner, whose sets have some scale."""
    if scale is None:
        return fitted
    if not isinstance(fitted, DecisionFocusedLearner):
        raise ModelError(f"scales= are for sets that are learnt, not for a {type(fitted).__name__}.")
    fitted.pipeline_.scale, fitted.calibration_ = scale, Calibration(scale, "choice", None, rows)
    return fitted


def _costs(fitted: Any, data: Examples) -> Float[Tensor, "row"]:
    """What its decisions cost; NaN where there is none."""
    known = fitted.problem.known_data.values(data.known)
    with no_unsolved_warnings():
        # Candidates report their rows without a decision.
        decision = fitted.decide(data.Z, known)
    return fitted.problem.loss(decision, data.Y, known).detach().double()


def _judged(
    name: str,
    scale: float | None,
    costs: list[Tensor],
    tested: list[Tensor],
    data: Examples,
    criterion: Callable[[Tensor, Examples], float],
) -> Candidate:
    """The criterion of all rows that were left out, and its standard error over the parts."""
    # A splitter may leave some rows out of every part, and take others twice: then they count twice.
    rows, together = torch.cat(tested), torch.cat(costs)
    undecided, infinite = int(together.isnan().sum()), int(together.isinf().sum())
    if undecided:
        return Candidate(name, scale, float("inf"), float("nan"), undecided, infinite)
    value = criterion(together, data[rows])
    if np.isnan(value) or value == -np.inf:
        costs_told = f", of which {infinite} are infinite here" if infinite else ""
        raise ModelError(
            f"The criterion of candidate {name} is {'no number' if np.isnan(value) else value}: return a number for "
            f"every array of costs{costs_told}."
        )
    if value == np.inf:
        return Candidate(name, scale, value, float("nan"), 0, infinite)
    parts = np.array([criterion(cost, data[part]) for cost, part in zip(costs, tested, strict=True)])
    error = float(parts.std(ddof=1) / len(parts) ** 0.5) if len(parts) > 1 else float("nan")
    return Candidate(name, scale, value, error, 0, infinite)
