"""Robust linear models side by side with the packages dro, SkWDRO and RSOME: values and seconds.

    pip install --no-deps dro skwdro rsome prodigyopt mechanic-pytorch cvxopt sqwash   # what is missing is said to be
    python -m research prove linear --out runs/linear

A regression has its features and its target in y, and the target may not move; a classification has the features times
their label, and the label. Ours is built once and then solved for as many sets of data as one likes: shown are the
times of both, and of one of 32 sets of weights in a batch, with the derivative of the decision in the weights; beside
them that of a peer's fit. Values are compared as the peer reports them (roots are squared). ``--only`` takes names of
packages. Seconds are those of a process with one thread: use one job where they matter.
"""

from __future__ import annotations

import importlib.util
import sys
import time
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import torch

import drolayers as ours
from research.experiments.task import Outcome, Row, Task, row
from research.proving.peers import compared, installed, unavailable

Data = tuple[np.ndarray, np.ndarray]

RADIUS, LEVEL, BATCH = 0.1, 0.9, 32
POINTS, FEATURES = 100, 10
OURS, PEER = "ours", "theirs"
INF = float("inf")


@dataclass(frozen=True)
class Model:
    """One robust model: ours as loss and set, a peer as a function of features and targets that returns its value."""

    name: str
    package: str
    loss: Callable[[cp.Expression, cp.Expression], cp.Expression]
    ambiguity: Callable[[ours.Uncertain, int], Any]
    radius: float | None
    peer: Callable[[np.ndarray, np.ndarray], float]
    classifies: bool = False


def lad(error: cp.Expression, margin: cp.Expression) -> cp.Expression:
    """The absolute error."""
    return cp.abs(error)


def square(error: cp.Expression, margin: cp.Expression) -> cp.Expression:
    """The squared error."""
    return cp.square(error)


def hinge(error: cp.Expression, margin: cp.Expression) -> cp.Expression:
    """What is missing of a margin of one."""
    return cp.pos(1.0 - margin)


def logistic(error: cp.Expression, margin: cp.Expression) -> cp.Expression:
    """The logistic loss of the margin."""
    return cp.logistic(-margin)


def ball(norm: float, order: float, metric: np.ndarray | None = None) -> Callable[[ours.Uncertain, int], Any]:
    """A Wasserstein ball in which the last coordinate, the target or the label, may not move."""
    return lambda y, atoms: ours.Wasserstein(y, atoms, norm, order, metric, fixed=[y.dim - 1])


def linear_models() -> Any:
    """The linear models of the package dro, without what it imports besides: neural networks and trees."""
    if "dro" not in sys.modules:
        found = importlib.util.find_spec("dro")
        if found is None:
            raise ModuleNotFoundError("dro")
        package = types.ModuleType("dro")
        package.__path__ = list(found.submodule_search_locations or [])
        sys.modules["dro"] = package
    return importlib.import_module("dro.linear_model")


def of_dro(kind: str, loss: str, config: dict[str, Any]) -> Callable[[np.ndarray, np.ndarray], float]:
    """A model of the package dro."""

    def fit(features: np.ndarray, target: np.ndarray) -> float:
        model = getattr(linear_models(), kind)(input_dim=features.shape[1], model_type=loss)
        model.update(config)
        model.fit(features, target)
        return float(model.robust_obj) ** (2 if (kind, loss) == ("WassersteinDRO", "ols") else 1)

    return fit


def of_skwdro(loss: str) -> Callable[[np.ndarray, np.ndarray], float]:
    """SkWDRO's own programs; its entropic ones answer another question."""

    def fit(features: np.ndarray, target: np.ndarray) -> float:
        from skwdro.solvers import specific_solvers

        if loss == "logistic":
            solver = specific_solvers.WDROLogisticSpecificSolver
            found = solver(rho=RADIUS, kappa=1e6, X=features, y=target, fit_intercept=True)
            slope, offset = np.ravel(found.coef), float(np.ravel(found.intercept)[0])
            missed = np.logaddexp(0.0, -target * (features @ slope + offset)).mean()
            return float(missed + RADIUS * np.linalg.norm(slope))
        found = specific_solvers.WDROLinRegSpecificSolver(rho=RADIUS, X=features, y=target, fit_intercept=True)
        slope, offset = np.ravel(found.coef), float(np.ravel(found.intercept)[0])
        error = np.linalg.norm(features @ slope + offset - target) / np.sqrt(len(target))
        return float(error + RADIUS * np.linalg.norm(slope)) ** 2

    return fit


def of_rsome(features: np.ndarray, target: np.ndarray) -> float:
    """The absolute error in a ball of order 1 and norm 1, with RSOME's scenarios."""
    from rsome import E, maxof, norm
    from rsome import dro as rso

    count, dim = features.shape
    model = rso.Model(count)
    z, u = model.rvar(dim + 1), model.rvar()
    known = model.ambiguity()
    for s in range(count):
        known[s].suppset(norm(z[:dim] - features[s], 1) <= u, z[dim] == target[s])
    known.exptset(E(u) <= RADIUS)
    known.probset(model.p == 1.0 / count)
    slope, offset = model.dvar(dim), model.dvar()
    error = slope @ z[:dim] + offset - z[dim]
    model.minsup(E(maxof(error, -error)), known)
    model.solve(display=False)
    return float(model.get())


def models(dim: int) -> list[Model]:
    """All of them."""
    metric = np.diag(np.linspace(0.5, 2.0, dim))
    wasserstein = {"cost_matrix": np.eye(dim), "eps": RADIUS, "p": 2, "kappa": "inf"}
    found = [
        Model(
            f"Wasserstein, {name}", "dro", loss, ball(2, 1), RADIUS, of_dro("WassersteinDRO", kind, wasserstein), labels
        )
        for name, loss, kind, labels in (
            ("LAD", lad, "lad", False),
            ("SVM", hinge, "svm", True),
            ("logistic", logistic, "logistic", True),
        )
    ]
    by_metric = {**wasserstein, "cost_matrix": metric @ metric}
    squared = {**wasserstein, "eps": RADIUS**2}
    found += [
        Model(
            "Wasserstein, LAD, metric",
            "dro",
            lad,
            ball(2, 1, metric),
            RADIUS,
            of_dro("WassersteinDRO", "lad", by_metric),
        ),
        Model(
            "Wasserstein 2, least squares", "dro", square, ball(2, 2), RADIUS, of_dro("WassersteinDRO", "ols", squared)
        ),
    ]
    for kind, name, radius in (("KLDRO", "kl", RADIUS), ("Chi2DRO", "chi2", RADIUS), ("TVDRO", "tv", 2 * RADIUS)):
        for label, loss, letters, labels in (
            ("LAD", lad, "lad", False),
            ("SVM", hinge, "svm", True),
            ("least squares", square, "ols", False),
        ):
            made = of_dro(kind, letters, {"eps": RADIUS})
            ambiguity = lambda y, atoms, name=name: ours.Divergence(y, atoms, name)  # noqa: E731
            found.append(Model(f"{name}, {label}", "dro", loss, ambiguity, radius, made, labels))
    for label, loss, letters, labels in (("LAD", lad, "lad", False), ("SVM", hinge, "svm", True)):

        def tail(error: cp.Expression, margin: cp.Expression, loss: Any = loss) -> cp.Expression:
            return ours.cvar(loss(error, margin), LEVEL)

        made = of_dro("CVaRDRO", letters, {"alpha": 1.0 - LEVEL})
        found.append(
            Model(f"CVaR, {label}", "dro", tail, lambda y, atoms: ours.Empirical(y, atoms), None, made, labels)
        )
    return [
        *found,
        Model("Wasserstein 2, least squares", "SkWDRO", square, ball(2, 2), RADIUS, of_skwdro("squares")),
        Model("Wasserstein, logistic", "SkWDRO", logistic, ball(2, 1), RADIUS, of_skwdro("logistic"), classifies=True),
        Model("Wasserstein, LAD, norm 1", "RSOME", lad, ball(1, 1), RADIUS, of_rsome),
    ]


def data(count: int, dim: int, classifies: bool, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features, and targets or labels."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, dim))
    target = features @ rng.normal(size=dim) + 0.5 + rng.standard_t(3, count)
    return features, np.where(target > 0, 1.0, -1.0) if classifies else target


def ourselves(model: Model, features: np.ndarray, target: np.ndarray) -> tuple[float, str, list[float]]:
    """Value, status, and seconds to build, to solve, and for one of a batch with its derivative."""
    count, dim = features.shape
    start = time.perf_counter()
    y, slope, offset = ours.Uncertain(dim + 1), cp.Variable(dim), cp.Variable()
    last = offset * y[dim] if model.classifies else offset
    score = y[:dim] @ slope + last
    problem = ours.DecisionProblem(model.loss(score - y[dim], score), [], model.ambiguity(y, count))
    built = time.perf_counter()
    seen = features * target[:, None] if model.classifies else features
    atoms = torch.as_tensor(np.column_stack([seen, target]))[None]
    nominal = atoms, torch.full((1, count), 1.0 / count, dtype=torch.float64)
    theta = torch.tensor([[] if model.radius is None else [model.radius]], dtype=torch.float64)
    problem.solve(theta, nominal)  # What is made for a program when it is first solved.
    ready = time.perf_counter()
    solution = problem.solve(theta, nominal)
    solved = time.perf_counter()
    drawn = np.random.default_rng(1).dirichlet(np.full(count, 10.0), BATCH)
    weights = torch.as_tensor(drawn).requires_grad_()
    many = problem.solve(theta.expand(BATCH, -1), (atoms.expand(BATCH, -1, -1), weights))
    many.variable(slope).sum().backward()
    spent = [built - start, solved - ready, (time.perf_counter() - solved) / BATCH]
    return float(solution.objective), solution.statuses[0].name, spent


def tasks(seeds: int, quick: bool = False) -> list[Task]:
    """Every model on every draw; one of each package, on few points, where it is to be quick."""
    points, features = (20, 3) if quick else (POINTS, FEATURES)
    chosen = models(features)
    if quick:
        chosen = list({model.package: model for model in chosen}.values())
    return [
        Task(
            "linear",
            "fits",
            model.package,
            (("model", model.name), ("package", model.package), ("points", points), ("features", features)),
            seed,
            installed(model.package.lower()),
        )
        for seed in range(seeds)
        for model in chosen
    ]


def run(task: Task, work: Path) -> Outcome:
    """Both on one draw."""
    warnings.simplefilter("ignore")
    points, features = int(task.columns["points"]), int(task.columns["features"])
    asked = task.columns["model"], task.columns["package"]
    model = next(m for m in models(features) if (m.name, m.package) == asked)
    few, given = (data(count, features, model.classifies, task.seed) for count in (8, points))
    ourselves(model, *few)  # Imports, caches and compiled kernels.
    value, status, (build, solve, one) = ourselves(model, *given)
    rows = [
        row(OURS, "seconds to build", build),
        row(OURS, "seconds to solve", solve),
        row(OURS, "seconds, one of a batch with its derivative", one),
    ]
    found: float | str = value if status == "OPTIMAL" else status
    return Outcome([*compared(OURS, found, PEER, *_theirs(model, few, given)), *rows])


def _theirs(model: Model, few: Data, given: Data) -> tuple[float | str, list[Row]]:
    """A peer's value, or why there is none, and its seconds."""
    if told := unavailable(model.package.lower()):
        return told, []
    try:
        model.peer(*few)  # As ours.
        start = time.perf_counter()
        value = model.peer(*given)
    except Exception as error:  # Whatever a peer raises is its answer.
        return f"{model.package} failed with {type(error).__name__}: {error}", []
    return value, [row(PEER, "seconds to solve", time.perf_counter() - start)]
