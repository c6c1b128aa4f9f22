"""PyEPO's ways to train a prediction on decisions, for costs that are affine in y."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Literal, Protocol, Self, final

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import BaseEstimator
from torch import Tensor

from conelayers.checks import number, whole
from conelayers.errors import ModelError
from drolayers.baselines.base import as_given, checked_problem, contexts
from drolayers.baselines.regression import MeanModel, fit_mean, train
from drolayers.baselines.sibling import ExpectedCost, affine
from drolayers.extras import require
from drolayers.learning.data import Examples, examples, split
from drolayers.problem import DecisionProblem

METHODS = ("spo+", "perturbed", "pfyl", "dbb", "nce", "ltr")


@final
class Pyepo(BaseEstimator):  # type: ignore[misc]
    """A network for y, trained on the decision that is best for its prediction, by one of PyEPO's methods.

    "spo+" is the convex surrogate of Elmachtoub and Grigas (2022); "perturbed" is the perturbed optimiser of Berthet et
    al. (2020), whose expected decision is trained on what it costs, and "pfyl" their Fenchel-Young loss; "dbb" is the
    interpolation of Vlastelica et al. (2020); "nce" and "ltr" compare the best decision with a pool of others, by noise
    contrast (Mulamba et al., 2021) and by listwise ranking (Mandi et al., 2022). With ``neighbours`` outcomes are mixed
    with those of as many nearest points, which makes losses robust (Schutte et al., 2024). Works with: costs that are
    affine in y, decisions continuous or mixed-integer.

    Args:
        problem: the decision problem; its set is not used.
        method: one of those.
        seed: of everything random.
        hidden: widths of the network.
        degree: of the polynomials of the covariates that the network sees.
        pretrain_epochs: epochs of training on squared errors, beforehand.
        pretrain_lr: its learning rate.
        epochs: epochs of training on decisions.
        lr: its learning rate.
        batch_size: items a step.
        samples: perturbations an item, for "perturbed" and "pfyl".
        amplitude: standard deviation of the perturbations, relative to that of the outcomes.
        strength: λ of "dbb".
        solve_ratio: share of the batches of "nce" and "ltr" that add decisions to the pool.
        neighbours: of the robust losses, each of weight one half beside the point itself; 0 for none.
        start: a model to begin with, which is copied, instead of training one on squared errors.
        linear: a quicker way to the best decisions for known outcomes; the library's own solver unless given.
        validation_share: share of the data held out where no validation data are given.
        oracle: passed to the layer.
        engine: passed to the layer.
    """

    def __init__(
        self,
        problem: DecisionProblem,
        method: Literal["spo+", "perturbed", "pfyl", "dbb", "nce", "ltr"] = "spo+",
        seed: int = 0,
        *,
        hidden: Sequence[int] = (64, 64),
        degree: int = 1,
        pretrain_epochs: int = 50,
        pretrain_lr: float = 3e-3,
        epochs: int = 30,
        lr: float = 1e-3,
        batch_size: int = 50,
        samples: int = 10,
        amplitude: float = 0.5,
        strength: float = 10.0,
        solve_ratio: float = 0.05,
        neighbours: int = 0,
        start: MeanModel | None = None,
        linear: Linear | None = None,
        validation_share: float = 0.2,
        oracle: Any = "auto",
        engine: Any = "auto",
    ) -> None:
        self.problem, self.method, self.seed = problem, method, seed
        self.hidden, self.degree = hidden, degree
        self.pretrain_epochs, self.pretrain_lr, self.epochs, self.lr = pretrain_epochs, pretrain_lr, epochs, lr
        self.batch_size, self.samples, self.amplitude = batch_size, samples, amplitude
        self.strength, self.solve_ratio, self.neighbours = strength, solve_ratio, neighbours
        self.start, self.linear = start, linear
        self.validation_share, self.oracle, self.engine = validation_share, oracle, engine

    def fit(self, Z: Any, Y: Any, validation: tuple[Any, Any] | None = None) -> Self:
        """Train on squared errors, then on decisions; validation data decide which epochs are kept."""
        if self.method not in METHODS:
            raise ModelError(f"There is no method {self.method!r}: choose one of {list(METHODS)}.")
        if not affine(checked_problem(self.problem, "Pyepo")):
            raise ModelError(
                "PyEPO's methods need a cost that is affine in y: this problem has maxima or curves of y, or "
                "constraints for every outcome."
            )
        pyepo_func = require("pyepo.func", "pyepo")
        training, held_out = split(
            self.problem, examples(self.problem, Z, Y), validation, self.validation_share, self.seed
        )
        self.n_features_in_ = training.Z.shape[1]
        first: list[dict[str, float]] = []
        if self.start is None:
            self.model_, first = fit_mean(
                training,
                held_out,
                hidden=self.hidden,
                degree=self.degree,
                epochs=self.pretrain_epochs,
                lr=self.pretrain_lr,
                batch_size=self.batch_size,
                seed=self.seed,
            )
        else:
            self.model_ = deepcopy(self.start)
        self.linear_ = self.linear or LinearProblem(self.problem, oracle=self.oracle, engine=self.engine)
        loss, labelled = self._loss(pyepo_func, training)
        second = train(
            self.model_,
            loss,
            self._score,
            labelled,
            held_out,
            epochs=self.epochs,
            lr=self.lr,
            batch_size=self.batch_size,
            seed=self.seed,
        )
        self.history_ = {"mean": first, "decision": second}
        return self

    def _loss(self, func: Any, training: Examples) -> tuple[Callable[[Tensor, Tensor], Tensor], Examples]:
        """The loss of a batch; the best decision of every training outcome travels beside it."""
        if not number("amplitude", self.amplitude) > 0:
            raise ModelError(f"amplitude must be positive, not {self.amplitude!r}.")
        costs, solutions = self._labels(training)
        model, width = optimisation_model(self.linear_), costs.shape[1]
        noise = {
            "n_samples": whole("samples", self.samples),
            "sigma": float(self.amplitude * training.Y.std(0, unbiased=False).mean()),
            "seed": self.seed,
        }
        # Its own constructor would solve all of them again, one by one.
        dataset: Any = object.__new__(require("pyepo.data.dataset", "pyepo").optDataset)
        dataset.sols = solutions
        pool = {"solve_ratio": self.solve_ratio, "dataset": dataset}
        module: Any = {
            "spo+": lambda: func.SPOPlus(model),
            "perturbed": lambda: func.perturbedOpt(model, **noise),
            "pfyl": lambda: func.perturbedFenchelYoung(model, **noise),
            "dbb": lambda: func.blackboxOpt(model, lambd=self.strength),
            "nce": lambda: func.noiseContrastiveEstimation(model, **pool),
            "ltr": lambda: func.listwiseLearningToRank(model, **pool),
        }[self.method]()

        def loss(z: Tensor, y: Tensor) -> Tensor:
            predicted, (cost, solution) = extended(self.model_(z)), y.split(width, 1)
            if self.method == "spo+":
                return module(predicted, cost, solution, (cost * solution).sum(1, keepdim=True))
            if self.method in ("perturbed", "dbb"):
                return (cost * module(predicted)).sum(1).mean()
            return module(predicted, cost if self.method == "ltr" else solution)

        return loss, Examples(training.Z, torch.cat([costs, solutions], 1), True)

    def _labels(self, training: Examples) -> tuple[Tensor, Tensor]:
        """What training points cost and their best decisions, or means of both over mixtures with neighbours."""
        costs = extended(training.Y)
        if not self.neighbours:
            return costs, self.linear_.solve(costs)
        # PyEPO's mixtures; its constructor would solve all of them, one by one.
        dataset: Any = object.__new__(require("pyepo.data.dataset", "pyepo").optDatasetKNN)
        dataset.feats, dataset.costs, dataset.k, dataset.weight = (
            training.Z,
            costs,
            whole("neighbours", self.neighbours),
            0.5,
        )
        mixed = torch.as_tensor(dataset._get_knn()).transpose(1, 2)
        solutions = self.linear_.solve(mixed.reshape(-1, mixed.shape[2])).reshape(mixed.shape)
        return mixed.mean(1), solutions.mean(1)

    def _score(self, data: Examples) -> float:
        """The mean cost of the decisions on some data."""
        return float((extended(data.Y) * self.linear_.solve(extended(self.model_(data.Z)))).sum(1).mean())

    @torch.no_grad()
    def decide(self, Z: Any) -> dict[cp.Variable, Any]:
        """The decisions that are best for the predictions."""
        values = contexts(self, Z)
        return as_given(self.linear_.decide(self.model_(values)), Z)


class Linear(Protocol):
    """A problem as PyEPO sees it: min cᵀw with c = (y, 1) and w = (a(x), b(x)), for a cost a(x)ᵀy + b(x)."""

    dim: int

    def decide(self, y: Tensor) -> dict[cp.Variable, Tensor]:
        """The best decisions for known outcomes."""
        ...

    def solve(self, cost: Tensor) -> Tensor:
        """The coefficients w of the best decisions."""
        ...


@final
class LinearProblem:
    """Any problem, by the library's own solver.

    Args:
        problem: with a cost that is affine in y.
        layer: settings of the layer.
    """

    def __init__(self, problem: DecisionProblem, **layer: Any) -> None:
        self.problem, self.dim = problem, problem.ambiguity.y.dim
        self.expected = ExpectedCost(problem, 1, **layer)

    def decide(self, y: Float[Tensor, "batch dim"]) -> dict[cp.Variable, Tensor]:
        """The best decisions for known outcomes."""
        atoms = y.detach().double()[:, None]
        return self.expected.decide(atoms, torch.ones_like(atoms[..., 0]))

    def solve(self, cost: Float[Tensor, "batch dim+1"]) -> Float[Tensor, "batch dim+1"]:
        """The coefficients w of the best decisions."""
        # Where the price of b(x) is not one, dividing by it leaves the minimiser alone.
        decision = self.decide(cost[:, : self.dim] / cost[:, self.dim :])
        if not all(bool(value.isfinite().all()) for value in decision.values()):
            raise ModelError("The problem has no optimal decision for some predicted y: bound its decisions.")
        with torch.enable_grad():
            y = torch.zeros(len(cost), self.dim, dtype=torch.float64, requires_grad=True)
            fixed = self.problem.loss(decision, y)
            (slope,) = torch.autograd.grad(fixed.sum(), y)
        return torch.cat([slope, fixed.detach()[:, None]], 1)


def extended(y: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim+1"]:
    """Examples with the price of what does not depend on them."""
    return torch.cat([y, torch.ones_like(y[:, :1])], 1)


def optimisation_model(linear: Linear) -> Any:
    """PyEPO's ``optModel`` around a problem.

    PyEPO sets and solves one objective after another, and looks at the solutions when all are there. So ``solve``
    returns promises, and the first one that is looked at has all of them solved in one batch.
    """
    base = require("pyepo.model.opt", "pyepo").optModel

    class Model(base):  # type: ignore[misc, valid-type]
        """Objectives are queued, and solved together."""

        def __init__(self) -> None:
            self.queue = _Queue(linear)
            super().__init__()

        def _getModel(self) -> tuple[Any, list[int]]:  # noqa: N802
            return linear, list(range(linear.dim + 1))

        @property
        def c_pred_index(self) -> np.ndarray:
            """Only y is predicted, so only y is perturbed."""
            return np.arange(linear.dim)

        def setObj(self, c: Any) -> None:  # noqa: N802
            """The next objective."""
            if self.queue.solutions is not None:
                self.queue = _Queue(linear)
            self.queue.costs.append(np.array(c, dtype=float))

        def solve(self) -> tuple[_Promise, _Promise]:
            """Solution and value, when somebody looks."""
            row = len(self.queue.costs) - 1
            return _Promise(self.queue, row, False), _Promise(self.queue, row, True)

    return Model()


class _Queue:
    """Objectives that wait to be solved."""

    def __init__(self, linear: Linear) -> None:
        self.linear, self.costs = linear, list[np.ndarray]()
        self.solutions: np.ndarray | None = None

    def look(self, row: int) -> tuple[np.ndarray, float]:
        """Solve whatever waits, and return one solution with its value."""
        if self.solutions is None:
            self.solutions = self.linear.solve(torch.as_tensor(np.stack(self.costs))).numpy()
        return self.solutions[row], float(self.solutions[row] @ self.costs[row])


class _Promise:
    """A solution or its value that is computed when it is turned into numbers."""

    def __init__(self, queue: _Queue, row: int, value: bool) -> None:
        self.queue, self.row, self.value = queue, row, value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.queue.look(self.row)[1 if self.value else 0], dtype=dtype)

    def __float__(self) -> float:
        return float(self.__array__())
