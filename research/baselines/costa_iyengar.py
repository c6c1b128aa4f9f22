"""The end-to-end portfolio of Costa and Iyengar (2023), for the continuous portfolio problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, final

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from conelayers.checks import number, whole
from conelayers.errors import ModelError
from conelayers.status import solve_error
from drolayers.baselines.base import as_given, checked_problem, contexts
from drolayers.baselines.regression import MeanModel, fit_mean, train
from drolayers.learning.data import Examples, examples, split
from drolayers.problem import DecisionProblem
from research.baselines.hellinger import HellingerPortfolio, RobustPortfolio


@final
class CostaIyengar(BaseEstimator):  # type: ignore[misc]
    """Expected returns from a network, deviation risk under the worst weights of its residuals, all trained together.

    The portfolio is ``argmin_x max_p Var_p(εᵀx) - γ ŷ(z)ᵀx``: the scenarios ε are the network's residuals at the latest
    training points, p lies in a Hellinger ball of size δ around equal weights, and γ and δ are learnt with the network
    from the return of the next period and the squared error of the prediction.

    Reference: G. Costa and G. N. Iyengar, Distributionally robust end-to-end portfolio construction, Quantitative
    Finance, 2023. Works with: cost -yᵀx over the simplex.

    Args:
        problem: the decision problem; its set is not used.
        seed: of everything random.
        hidden: widths of the network.
        degree: of the polynomials of the covariates that the network sees.
        scenarios: number of residuals.
        delta: where the size of the ball begins.
        gamma: where the risk appetite begins.
        prediction_weight: of the mean squared error in the loss.
        pretrain_epochs: epochs of training on squared errors alone, beforehand.
        epochs: passes over the training data.
        lr: learning rate of Adam.
        batch_size: items a step.
        validation_share: share of the data held out where no validation data are given.
        engine: who solves, by name or as an object.
    """

    def __init__(
        self,
        problem: DecisionProblem,
        seed: int = 0,
        *,
        hidden: Sequence[int] = (22, 27),
        degree: int = 1,
        scenarios: int = 100,
        delta: float = 0.2,
        gamma: float = 0.05,
        prediction_weight: float = 0.5,
        pretrain_epochs: int = 0,
        epochs: int = 60,
        lr: float = 0.0125,
        batch_size: int = 100,
        validation_share: float = 0.2,
        engine: Any = "auto",
    ) -> None:
        self.problem, self.seed, self.hidden, self.degree = problem, seed, hidden, degree
        self.scenarios, self.delta, self.gamma, self.prediction_weight = scenarios, delta, gamma, prediction_weight
        self.pretrain_epochs, self.epochs, self.lr, self.batch_size = pretrain_epochs, epochs, lr, batch_size
        self.validation_share, self.engine = validation_share, engine

    def fit(self, Z: Any, Y: Any, validation: tuple[Any, Any] | None = None) -> Self:
        """Train on the latest residuals and on all points; validation data decide which epoch is kept."""
        self.variable_ = _portfolio_variable(checked_problem(self.problem, "CostaIyengar"))
        training, held_out = split(
            self.problem, examples(self.problem, Z, Y), validation, self.validation_share, self.seed
        )
        self.n_features_in_ = training.Z.shape[1]
        model, _ = fit_mean(
            training,
            held_out,
            hidden=self.hidden,
            degree=self.degree,
            epochs=self.pretrain_epochs,
            lr=self.lr,
            batch_size=self.batch_size,
            seed=self.seed,
            linear=False,
        )
        count = min(whole("scenarios", self.scenarios, 2), len(training))
        latest = Examples(training.Z[-count:], training.Y[-count:], False)
        program = HellingerPortfolio(self.variable_.size, count, self.engine)
        self.module_ = EndToEnd(model, latest, program, self.delta, self.gamma)
        weight = number("prediction_weight", self.prediction_weight)

        def loss(z: Tensor, y: Tensor) -> Tensor:
            predicted = self.module_.model(z)
            return self.module_.returns(predicted, y).neg() + weight * (predicted - y).square().mean()

        def score(data: Examples) -> float:
            return -float(self.module_.returns(self.module_.model(data.Z), data.Y))

        self.history_ = train(
            self.module_,
            loss,
            score,
            training,
            held_out,
            epochs=self.epochs,
            lr=self.lr,
            batch_size=self.batch_size,
            seed=self.seed,
            decay=False,
        )
        return self

    @torch.no_grad()
    def decide(self, Z: Any) -> dict[cp.Variable, Any]:
        """The robust portfolios for the predicted returns."""
        values = contexts(self, Z)
        parts = [self.module_(self.module_.model(z)).weights for z in values.split(512)]
        return as_given({self.variable_: torch.cat(parts)}, Z)


class EndToEnd(nn.Module):
    """The network, the residuals at fixed points, and the two learnable numbers of the program.

    Args:
        model: for expected returns.
        latest: the points whose residuals are the scenarios.
        program: the robust program.
        delta: where the size of the ball begins.
        gamma: where the risk appetite begins.
    """

    def __init__(
        self, model: MeanModel, latest: Examples, program: HellingerPortfolio, delta: float, gamma: float
    ) -> None:
        super().__init__()
        self.model, self.latest, self.program = model, latest, program
        # From 2(1 - 1/√T) on the ball is the whole simplex.
        self.largest = 2.0 * (1.0 - len(latest) ** -0.5)
        if not 0 < number("delta", delta) < self.largest:
            raise ModelError(f"delta must lie between 0 and {self.largest:.3g}, the whole simplex, not {delta!r}.")
        if not number("gamma", gamma) > 0:
            raise ModelError(f"gamma must be positive, not {gamma!r}.")
        share = torch.tensor(delta / self.largest, dtype=torch.float64)
        self.delta_logit = nn.Parameter(share.logit())
        self.gamma_log = nn.Parameter(torch.tensor(gamma, dtype=torch.float64).log())

    @property
    def delta(self) -> Float[Tensor, ""]:
        """Size of the ball."""
        return self.largest * self.delta_logit.sigmoid()

    @property
    def gamma(self) -> Float[Tensor, ""]:
        """Risk appetite."""
        return self.gamma_log.exp()

    def forward(self, predicted: Float[Tensor, "batch asset"]) -> RobustPortfolio:
        """The portfolios for predicted returns."""
        residuals = self.latest.Y - self.model(self.latest.Z)
        return self.program(residuals, self.gamma * predicted, self.delta)

    def returns(self, predicted: Float[Tensor, "batch asset"], y: Float[Tensor, "batch asset"]) -> Float[Tensor, ""]:
        """Average the return of the next period over the items that were solved.

        Raises:
            SolveError: no item was solved.
        """
        found = self(predicted)
        if not bool(found.ok.any()):
            raise solve_error(found.statuses)
        weights = torch.where(found.ok[:, None], found.weights, torch.zeros_like(predicted))
        return (weights * y).sum() / int(found.ok.sum())


def _portfolio_variable(problem: DecisionProblem) -> cp.Variable:
    """The one variable of the problem min -yᵀx over the simplex."""
    dim = problem.ambiguity.y.dim
    refusal = ModelError(
        "CostaIyengar is written for the cost -yᵀx over the simplex {x ≥ 0, Σx = 1}, and nothing else."
    )
    if len(problem.variables) != 1 or problem.integer_variables or problem.variables[0].shape != (dim,):
        raise refusal
    (variable,) = problem.variables
    rng = np.random.default_rng(0)
    x, y = torch.as_tensor(rng.standard_normal((dim, dim))), torch.as_tensor(rng.standard_normal((dim, dim)))
    if not torch.allclose(problem.loss({variable: x}, y), -(x * y).sum(1)):
        raise refusal
    inside = [row for row in np.eye(dim)] + [np.full(dim, 1.0 / dim)]
    outside = [np.zeros(dim), 2.0 * np.eye(dim)[0], (np.arange(dim) == 0) * 2.0 - (np.arange(dim) == dim - 1) * 1.0]
    if not all(_feasible(problem, variable, point) for point in inside) or any(
        _feasible(problem, variable, point) for point in outside
    ):
        raise refusal
    return variable


def _feasible(problem: DecisionProblem, variable: cp.Variable, point: np.ndarray) -> bool:
    """Whether a point satisfies the constraints."""
    lower = bool(variable.is_nonneg()) and bool((point < 0).any())
    before = variable.value
    variable.save_value(point)
    held = all(bool(np.all(constraint.violation() <= 1e-9)) for constraint in problem.constraints)
    variable.save_value(before)
    return held and not lower
