"""Examples of RSOME's documentation, written in RSOME and in this library (``python -m research prove rsome``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import torch

import drolayers as dro

moments = dro.moments


@dataclass(frozen=True)
class Example:
    """One page of RSOME's documentation.

    Attributes:
        theirs: makes RSOME's model.
        ours: makes the problem, θ and the nominal distribution.
        note: what is to be known of the comparison.
    """

    theirs: Callable[[], Any]
    ours: Callable[[], tuple[dro.DecisionProblem, torch.Tensor, tuple[torch.Tensor, torch.Tensor] | None]]
    note: str = ""


def tensor(values: Any) -> torch.Tensor:
    """One item of float64."""
    return torch.as_tensor(np.asarray(values, dtype=np.float64))[None]


def around(points: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of equal weight as a nominal distribution."""
    return tensor(points), tensor(np.full(len(points), 1.0 / len(points)))


# --- Multi-item newsvendor under a Wasserstein ball -----------------------------------------------------------------


def newsvendor_data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prices, largest demands and demands."""
    rng = np.random.RandomState(0)
    p, zbar = 1 + 4 * rng.rand(2), 100 * rng.rand(2)
    return p, zbar, zbar * rng.rand(50, 2)


def newsvendor_theirs(per_atom: bool = True) -> Any:
    """As on the page."""
    from rsome import E, norm
    from rsome import dro as rs

    p, zbar, zhat = newsvendor_data()
    model = rs.Model(len(zhat))
    z, u = model.rvar(2), model.rvar()
    fset = model.ambiguity()
    for s in range(len(zhat)):
        fset[s].suppset(z >= 0, z <= zbar, norm(z - zhat[s]) <= u)
    fset.exptset(E(u) <= 0.01 * zbar.min())
    pr = model.p
    fset.probset(pr == 1 / len(zhat))
    x, y = model.dvar(2), model.dvar(2)
    y.adapt(z)
    if per_atom:
        y.adapt(u)
        for s in range(len(zhat)):
            y.adapt(s)
    model.minsup(-p @ x + E(p @ y), fset)
    model.st(y >= 0, y >= x - z, x >= 0, x.sum() == 100)
    return model


def newsvendor_ours(bound: float | None = None) -> Any:
    """What is left over adapts to demand; a bound on its worst mean leaves all atoms one rule."""
    p, zbar, zhat = newsvendor_data()
    z = dro.Uncertain(2, support=dro.support.Box(0.0, zbar))
    x, left = cp.Variable(2, nonneg=True), dro.Adaptive(2, to=z, nonneg=True)
    rules = [dro.always(left >= x - z), cp.sum(x) == 100]
    rules += [] if bound is None else [dro.expected(cp.sum(left)) <= bound]
    problem = dro.DecisionProblem(-p @ x + p @ left, rules, dro.Wasserstein(z, len(zhat), norm=2))
    return problem, tensor([0.01 * zbar.min()]), around(zhat)


# --- Lot sizing -----------------------------------------------------------------------------------------------------


def lots_data(n: int = 3, N: int = 10) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Capacities and costs of transport, and demands."""
    rng = np.random.RandomState(0)
    b = 20 / (n - 1) / rng.rand(n, n)
    xy = 10 * rng.rand(2, n)
    c = ((xy[[0]] - xy[[0]].T) ** 2 + (xy[[1]] - xy[[1]].T) ** 2) ** 0.5
    return b, c, 20 * rng.rand(N, n)


def lots_theirs() -> Any:
    """As on the page, with three places, ten samples and a radius of one, at which adapting pays."""
    from rsome import E, norm
    from rsome import dro as rs

    b, c, ds = lots_data()
    N, n = ds.shape
    model = rs.Model(N)
    x, y, w = model.dvar(n), model.dvar((n, n)), model.dvar(n)
    d, u = model.rvar(n), model.rvar()
    for v in (y, w):
        v.adapt(d)
        v.adapt(u)
        for s in range(N):
            v.adapt(s)
    fset = model.ambiguity()
    for s in range(N):
        fset[s].suppset(d >= 0, d <= 20, norm(d - ds[s], 1) <= u)
    fset.exptset(E(u) <= 1.0)
    pr = model.p
    fset.probset(pr == 1 / N)
    model.minsup(x.sum() + E((c * y).sum() + (5 * w).sum()), fset)
    model.st(d <= y.sum(axis=0) - y.sum(axis=1) + x + w, y >= 0, y <= b, x >= 0, x <= 20, w >= 0)
    return model


def lots_ours() -> Any:
    """What is moved, and ordered at once, adapts to demand."""
    b, c, ds = lots_data()
    N, n = ds.shape
    d = dro.Uncertain(n, support=dro.support.Box(0.0, 20.0))
    x = cp.Variable(n, nonneg=True)
    y, w = dro.Adaptive((n, n), to=d, nonneg=True), dro.Adaptive(n, to=d, nonneg=True)
    rules = [dro.always(d <= cp.sum(y, axis=0) - cp.sum(y, axis=1) + x + w), dro.always(y <= b), x <= 20]
    cost = cp.sum(x) + cp.sum(cp.multiply(c, y)) + 5 * cp.sum(w)
    return dro.DecisionProblem(cost, rules, dro.Wasserstein(d, N)), tensor([1.0]), around(ds)


# --- Appointments under a partial cross moment ----------------------------------------------------------------------


def appointments_data() -> tuple[np.ndarray, np.ndarray, np.float64, np.float64]:
    """Means, standard deviations, the variance of the sum, and the time in all."""
    rng = np.random.RandomState(0)
    mu = 30 + 30 * rng.rand(8)
    sigma = mu * 0.3 * rng.rand(1, 8)
    total = mu.sum() + 0.5 * ((sigma**2).sum()) ** 0.5
    cross = (sigma.T @ sigma) * (np.diag(np.ones(8)) * 0.75 + np.ones((8, 8)) * 0.25)
    return mu, sigma[0], cross.sum(), total


def appointments_theirs() -> Any:
    """As on the page."""
    from rsome import E, square
    from rsome import dro as rs

    mu, sigma, cross, total = appointments_data()
    model = rs.Model()
    z, u = model.rvar(8), model.rvar(9)
    fset = model.ambiguity()
    fset.suppset(z >= 0, square(z - mu) <= u[:-1], square((z - mu).sum()) <= u[-1])
    fset.exptset(E(z) == mu, E(u[:-1]) <= sigma**2, E(u[-1:]) <= np.array([cross]))
    x, y = model.dvar(8), model.dvar(9)
    y.adapt(z)
    y.adapt(u)
    model.minsup(E(y[:-1].sum() + 2 * y[-1]), fset)
    model.st(y[1:] - y[:-1] + x >= z, y >= 0, x >= 0, x.sum() <= total)
    return model


def appointments_ours() -> Any:
    """Waiting times and overtime adapt to consultations."""
    mu, sigma, cross, total = appointments_data()
    z = dro.Uncertain(8, support=dro.support.Nonnegative())
    x, y = cp.Variable(8, nonneg=True), dro.Adaptive(9, to=z, nonneg=True)
    known = [
        moments.Mean(mu),
        moments.Variance(mu, sigma**2),
        moments.AbsolutePower(2, np.ones(8), float(mu.sum()), cross),
    ]
    rules = [dro.always(y[1:] - y[:-1] + x >= z), cp.sum(x) <= total]
    problem = dro.DecisionProblem(cp.sum(y[:-1]) + 2 * y[-1], rules, dro.MomentSet(z, known))
    return problem, torch.zeros(1, 0, dtype=torch.float64), None


# --- Inventory in ten stages ----------------------------------------------------------------------------------------

T, VBAR, ALPHA = 10, 10.0, 0.25
DEMAND = ALPHA * np.triu(np.ones((T, T))) + (1 - ALPHA) * np.eye(T)
BACKORDER = np.append(np.full(T - 1, 0.4), 4.0)


def stages_theirs(wasserstein: bool) -> Any:
    """As on the page; there an undefined ``w`` stands for ``x1`` in the constraints of the second version."""
    from rsome import E, norm, square
    from rsome import dro as rs

    vhat = inventory_data()
    model = rs.Model(len(vhat)) if wasserstein else rs.Model()
    v, u = model.rvar(T), model.rvar() if wasserstein else model.rvar(T * (T + 1) // 2)
    fset = model.ambiguity()
    if wasserstein:
        fset.exptset(E(u) <= 0.02 * T)
        for s in range(len(vhat)):
            fset[s].suppset(v >= -VBAR, v <= VBAR, norm(v - vhat[s], 1) <= u)
        pr = model.p
        fset.probset(pr == 1 / len(vhat))
    else:
        fset.exptset(E(v) == 0, E(u) <= np.array([VBAR * (t - r + 1) / 3 for t in range(T) for r in range(t + 1)]))
        sums = [square(v[r:t].sum()) <= u[t * (t - 1) // 2 + r] for t in range(T + 1) for r in range(t)]
        fset.suppset(v >= -VBAR, v <= VBAR, sums)
    d = v @ DEMAND + 200
    x1, x, I, y = model.dvar(), model.dvar(T - 1), model.dvar(T), model.dvar(T)
    for t in range(T):
        for stage in [I[t], y[t]] + ([x[t]] if t < T - 1 else []):
            stage.adapt(v[: t + 1])
            if not wasserstein:
                stage.adapt(u[: (t + 1) * (t + 2) // 2])
    if wasserstein:
        I[T - 1].adapt(u)
        y[T - 1].adapt(u)
    model.minsup(E(0.1 * x1 + 0.1 * x.sum() + y.sum()), fset)
    model.st(I[0] == x1 - d[0])
    for t in range(1, T):
        model.st(I[t] == I[t - 1] + x[t - 1] - d[t])
    model.st(y >= 0.02 * I, y >= -BACKORDER * I, x1 >= 0, x1 <= 260, x >= 0, x <= 260)
    return model


def inventory_data() -> np.ndarray:
    """Fifty samples of the noise."""
    return (1 - 2 * np.random.RandomState(0).rand(50, T)) * VBAR


def stages_ours(wasserstein: bool) -> Any:
    """Orders see the noise of earlier stages, costs that of their own; stock is what it is."""
    v = dro.Uncertain(T, support=dro.support.Box(-VBAR, VBAR))
    first = cp.Variable(nonneg=True)
    later = dro.Adaptive(T - 1, to=[v[: t + 1] for t in range(T - 1)], nonneg=True)
    # The last stage sees all: it is a decision of its own, so that every atom can have a rule for it.
    earlier, last = dro.Adaptive(T - 1, to=[v[: t + 1] for t in range(T - 1)]), dro.Adaptive(to=v)
    cost = cp.hstack([earlier, last])
    stock = cp.cumsum(cp.hstack([first, later]) - v @ DEMAND - 200)
    rules = [
        dro.always(cost >= 0.02 * stock),
        dro.always(cost >= -cp.multiply(BACKORDER, stock)),
        first <= 260,
        dro.always(later <= 260),
    ]
    total = 0.1 * first + 0.1 * cp.sum(later) + cp.sum(cost)
    if wasserstein:
        vhat = inventory_data()
        problem = dro.DecisionProblem(total, rules, dro.Wasserstein(v, len(vhat)))
        return problem, tensor([0.02 * T]), around(vhat)
    known = [moments.Mean(np.zeros(T))]
    for t in range(T):
        for r in range(t + 1):
            along = np.zeros(T)
            along[r : t + 1] = 1.0
            known.append(moments.AbsolutePower(2, along, 0.0, VBAR * (t - r + 1) / 3))
    return dro.DecisionProblem(total, rules, dro.MomentSet(v, known)), torch.zeros(1, 0, dtype=torch.float64), None


# --- Robust satisficing: a portfolio with two targets ---------------------------------------------------------------


def satisficing_data() -> np.ndarray:
    """Returns of 300 days and ten assets."""
    rng, i = np.random.RandomState(1), np.arange(1, 11)
    common = 0.05 * rng.normal(size=(300, 10))
    return common + 0.02 * i + 0.03 * i * rng.normal(size=(300, 10))


def satisficing_theirs() -> Any:
    """As on the page: a mean return of 0.125, and a CVaR of 0.1 ten times as dear."""
    from rsome import E, maxof, norm
    from rsome import dro as rs

    zhat = satisficing_data()
    s, n = zhat.shape
    model = rs.Model(s)
    x, alpha, k0, k1 = model.dvar(n), model.dvar(), model.dvar(), model.dvar()
    z, u = model.rvar(n), model.rvar()
    fset = model.ambiguity()
    for j in range(s):
        fset[j].suppset(norm(z - zhat[j], 1) <= u)
    pr = model.p
    fset.probset(pr == 1 / s)
    r = z @ x
    model.minsup(k0 + 10 * k1, fset)
    model.st(E(r) >= 0.125 - E(k0 * u))
    model.st(alpha + (1 / 0.05) * E(maxof(-r - alpha, 0)) <= 0.1 + E(k1 * u))
    model.st(x >= 0, x.sum() == 1)
    return model


def satisficing_ours() -> tuple[dro.DecisionProblem, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Two fragilities."""
    zhat = satisficing_data()
    s, n = zhat.shape
    z, x = dro.Uncertain(n), cp.Variable(n, nonneg=True)
    loss = -z @ x
    cost = dro.fragility(loss, -0.125) + 10 * dro.fragility(dro.cvar(loss, 0.95), 0.1)
    problem = dro.DecisionProblem(cost, [cp.sum(x) == 1], dro.Wasserstein(z, s))
    return problem, tensor([0.01]), around(zhat)


# --- A mean-CVaR portfolio under a Wasserstein ball -----------------------------------------------------------------


def mean_cvar_data() -> np.ndarray:
    """Returns of 30 years and ten assets."""
    rng, i = np.random.RandomState(1), np.arange(1, 11)
    common = 0.02 * rng.normal(size=(30, 10))
    return np.maximum(common + 0.03 * i + 0.025 * i * rng.normal(size=(30, 10)), -1.0)


def mean_cvar_theirs() -> Any:
    """As on the page: the larger of two pieces, with the threshold a decision."""
    from rsome import E, maxof, norm
    from rsome import dro as rs

    zhat = mean_cvar_data()
    n, m = zhat.shape
    rho, alpha = 10, 0.2
    model = rs.Model(n)
    x, tau = model.dvar(m), model.dvar()
    z, u = model.rvar(m), model.rvar()
    fset = model.ambiguity()
    for s in range(n):
        fset[s].suppset(norm(z - zhat[s], 1) <= u, z >= -1)
    fset.exptset(E(u) <= 0.01)
    pr = model.p
    fset.probset(pr == 1 / n)
    r = z @ x
    model.minsup(E(maxof(-r + rho * tau, (-1 - rho / alpha) * r + rho * (1 - 1 / alpha) * tau)), fset)
    model.st(x.sum() == 1, x >= 0)
    return model


def mean_cvar_ours() -> tuple[dro.DecisionProblem, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """The mean loss and ten times its CVaR, as they are."""
    zhat = mean_cvar_data()
    n, m = zhat.shape
    z, x = dro.Uncertain(m, support=dro.support.Box(-1.0, np.inf)), cp.Variable(m, nonneg=True)
    cost = -z @ x + 10 * dro.cvar(-z @ x, 0.8)
    problem = dro.DecisionProblem(cost, [cp.sum(x) == 1], dro.Wasserstein(z, n))
    return problem, tensor([0.01]), around(zhat)


EXAMPLES = {
    "newsvendor": Example(newsvendor_theirs, newsvendor_ours),
    "newsvendor, one rule": Example(lambda: newsvendor_theirs(False), lambda: newsvendor_ours(1e4)),
    "lot sizing": Example(lots_theirs, lots_ours, "distances by coordinate make the rule exact"),
    "appointments": Example(appointments_theirs, appointments_ours),
    "inventory, moments": Example(lambda: stages_theirs(False), lambda: stages_ours(False)),
    "inventory, type 1": Example(
        lambda: stages_theirs(True), lambda: stages_ours(True), "the last stage has a rule for every atom, RSOME's one"
    ),
    "robust satisficing": Example(satisficing_theirs, satisficing_ours),
    "mean-CVaR portfolio": Example(mean_cvar_theirs, mean_cvar_ours),
}
