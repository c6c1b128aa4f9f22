"""Known data in the support of y: today's upper bound of demand. Against problems that are built with constants."""

import warnings

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import drolayers as dro
from drolayers import Status
from drolayers.learning import Stage

BATCH, DIM = 4, 2
HI = torch.tensor([[3.0, 4.0], [2.0, 6.0], [5.0, 5.5], [2.5, 2.5]], dtype=torch.float64)
LO = torch.tensor([[0.5, 0.1], [0.2, 0.9], [0.15, 0.1], [1.0, 0.3]], dtype=torch.float64)
C = np.array([[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])


def box_hi(lo, hi):
    return dro.support.Box(0.0, hi)


def box_both(lo, hi):
    return dro.support.Box(lo, hi)


def box_lo(lo, hi):
    return dro.support.Box(lo)


def scaled(lo, hi):
    return dro.support.Box(0.0, 0.5 * hi + lo + 1.0)


def polyhedron(lo, hi):
    half = cp.sum(hi) if isinstance(hi, cp.Expression) else np.sum(hi)
    ends = -lo
    return dro.support.Polyhedron(
        C, cp.hstack([0.7 * half, ends]) if isinstance(hi, cp.Expression) else [0.7 * half, *ends]
    )


def crossed_boxes(lo, hi):
    return dro.support.Box(lo, hi) & dro.support.Box(0.0, 4.5)


def with_ball(lo, hi):
    return dro.support.Box(lo, hi) & dro.support.Ellipsoid([2.0, 2.0], 2.5 * np.eye(2))


SUPPORTS = {f.__name__: f for f in (box_hi, box_both, box_lo, scaled, polyhedron, crossed_boxes, with_ball)}


def affine(x, y):
    return y @ x


def piecewise(x, y):
    return cp.sum(x) + 4.0 * cp.sum(cp.pos(y - x)) + 0.5 * cp.sum(cp.pos(x - y))


def joint(x, y):
    return cp.sum(x) + 3.0 * cp.pos(cp.sum(y) - cp.sum(x))


def moment_set(y):
    return dro.MomentSet(y, [dro.moments.SquaredNorm(), dro.moments.Mean()])


def ball(order, norm):
    return lambda y: dro.Wasserstein(y, 3, norm=norm, order=order)


SETS = {
    "squared": lambda y: dro.MomentSet(y, [dro.moments.SquaredNorm()]),
    "l1": lambda y: dro.MomentSet(y, [dro.moments.Norm(1)]),
    "order 1": ball(1, 1),
    "order 2": ball(2, 2),
    "order 1, joined": ball(1, 2),
}
COSTS = {"affine": affine, "piecewise": piecewise, "joint": joint}


def problem(support, cost, ambiguity, integer=False):
    y, x = dro.Uncertain(DIM, support=support), cp.Variable(DIM, integer=integer, name="x")
    constraints = [x >= 0, x <= 6, cp.sum(x) >= 1]
    return dro.DecisionProblem(COSTS[cost](x, y), constraints, SETS[ambiguity](y))


def theta_for(ambiguity) -> Tensor:
    if ambiguity.needs_nominal:
        return torch.full((BATCH, 1), 0.4, dtype=torch.float64)
    return torch.tensor([[1.4, 1.2, 1.1]], dtype=torch.float64).expand(BATCH, -1).contiguous()


def nominal_for(ambiguity):
    if not ambiguity.needs_nominal:
        return None
    atoms = torch.tensor([[1.2, 1.0], [1.6, 1.2], [1.4, 2.0]], dtype=torch.float64).expand(BATCH, 3, DIM)
    return atoms, torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).expand(BATCH, 3)


def parameters():
    return cp.Parameter(DIM, nonneg=True, name="lo"), cp.Parameter(DIM, name="hi")


def row(given, i):
    return None if given is None else tuple(part[i : i + 1] for part in given)


CASES = sorted(
    {("box_both", ambiguity, cost) for ambiguity in SETS for cost in COSTS}
    | {(support, ambiguity, "piecewise") for support in SUPPORTS for ambiguity in ("squared", "order 1", "order 2")}
)


@pytest.mark.parametrize(("support", "ambiguity", "cost"), CASES)
def test_values_and_gradients(support: str, ambiguity: str, cost: str) -> None:
    known = problem(SUPPORTS[support](*parameters()), cost, ambiguity)
    names = set(known.known)
    theta, nominal = theta_for(known.ambiguity), nominal_for(known.ambiguity)
    data = {n: v.clone().requires_grad_() for n, v in (("lo", LO), ("hi", HI)) if n in names}
    assert names <= {"lo", "hi"}
    solution = known.solve(theta, nominal, known=data)
    for i in range(BATCH):
        constant = problem(SUPPORTS[support](LO[i].numpy(), HI[i].numpy()), cost, ambiguity)
        expected = constant.solve(theta[i : i + 1], row(nominal, i))
        assert expected.status[0] == solution.status[i]
        if bool(expected.ok[0]):
            assert float(solution.objective[i].detach()) == pytest.approx(float(expected.objective[0]), abs=1e-6)
    assert bool(solution.ok.any())
    ok = solution.ok
    solution.objective[ok].sum().backward()
    step = 1e-4
    for name, value in data.items():
        for k in range(DIM):
            shift = step * torch.eye(DIM, dtype=torch.float64)[k]
            ends = []
            for sign in (1.0, -1.0):
                moved = {n: v.detach() + sign * shift * (n == name) for n, v in data.items()}
                ends.append(known.solve(theta, nominal, known=moved).objective)
            numeric = (ends[0] - ends[1]) / (2 * step)
            torch.testing.assert_close(value.grad[ok, k], numeric[ok], atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("ambiguity", ["squared", "order 1", "order 2"])
def test_integers(ambiguity: str) -> None:
    known = problem(box_both(*parameters()), "piecewise", ambiguity, integer=True)
    theta, nominal = theta_for(known.ambiguity), nominal_for(known.ambiguity)
    crossed = HI.clone()
    crossed[2] = -1.0
    decision = dro.DROLayer(known).eval()(theta, nominal, known={"lo": LO, "hi": crossed})
    assert decision.status.tolist()[2] == int(Status.EMPTY_SET)
    for i in (0, 1, 3):
        constant = problem(box_both(LO[i].numpy(), HI[i].numpy()), "piecewise", ambiguity, integer=True)
        expected = dro.DROLayer(constant).eval()(theta[i : i + 1], row(nominal, i))
        assert float(decision.value[i]) == pytest.approx(float(expected.value[0]), abs=1e-6)
    training = dro.DROLayer(known, samples=8, seed=1)(theta, nominal, known={"lo": LO, "hi": crossed})
    assert training.status.tolist()[2] == int(Status.EMPTY_SET)
    assert bool(training.ok[[0, 1, 3]].all())


@pytest.mark.parametrize("gap", [1e-5, 1e3])
@pytest.mark.parametrize("cost", ["affine", "piecewise"])
@pytest.mark.parametrize("ambiguity", ["squared", "order 1", "order 2"])
@pytest.mark.parametrize("support", [box_both, polyhedron, crossed_boxes])
def test_an_empty_item_is_told(support, ambiguity: str, cost: str, gap: float) -> None:
    known = problem(support(*parameters()), cost, ambiguity)
    theta, nominal = theta_for(known.ambiguity), nominal_for(known.ambiguity)
    hi = HI.clone()
    hi[1] = LO[1] - gap * torch.tensor([1.0, 0.0]).double() if support is not polyhedron else LO[1] - gap
    hi[1] = hi[1] if support is not polyhedron else (LO[1] * 0.5 / 0.7 - gap)
    solution = known.solve(theta, nominal, known={"lo": LO, "hi": hi})
    assert solution.status.tolist()[1] == int(Status.EMPTY_SET)
    assert bool(solution.objective[1].isnan())
    assert bool(solution.ok[[0, 2, 3]].all())
    x = {known.variables[0]: torch.ones(BATCH, DIM).double()}
    assert bool(known.worst_case_cost(x, theta, nominal, known={"lo": LO, "hi": hi})[1].isnan())


def test_an_empty_part_that_the_cost_does_not_see() -> None:
    for make in (box_both, polyhedron):
        y, x = dro.Uncertain(DIM, support=make(*parameters())), cp.Variable(nonneg=True)
        known = dro.DecisionProblem(x + 3.0 * cp.pos(y[0] - x), [x <= 6], SETS["squared"](y))
        hi = HI.clone()
        hi[1, 1] = -9.0
        status = known.solve(theta_for(known.ambiguity), known={"lo": LO, "hi": hi}).status.tolist()
        assert status[1] == int(Status.EMPTY_SET)
        assert status[0] == int(Status.OPTIMAL)


def test_equal_ends_are_a_point() -> None:
    known = problem(box_both(*parameters()), "piecewise", "squared")
    theta = torch.tensor([[1.0, 1.0, 4.0]], dtype=torch.float64)
    solution = known.solve(theta, known={"lo": torch.tensor([1.0, 2.0]), "hi": torch.tensor([1.0, 2.0])})
    assert bool(solution.ok.all())
    assert float(solution.objective[0]) == pytest.approx(3.0, abs=1e-6)


@pytest.mark.parametrize("ambiguity", ["squared", "order 1", "order 2"])
def test_worst_distributions_lie_in_todays_support(ambiguity: str) -> None:
    known = problem(box_both(*parameters()), "piecewise", ambiguity)
    theta, nominal = theta_for(known.ambiguity), nominal_for(known.ambiguity)
    data = {"lo": LO, "hi": HI}
    x = {known.variables[0]: torch.ones(BATCH, DIM).double()}
    value = known.worst_case_cost(x, theta, nominal, known=data)
    worst = known.worst_case_distribution(x, theta, nominal, known=data)
    for i in range(BATCH):
        used = worst.probabilities[i] > 1e-6
        outside = known.ambiguity.y.support.violation(
            worst.atoms[i][None], {p: {"lo": LO, "hi": HI}[p.name()][i : i + 1] for p in known.known_data.parameters}
        )[0]
        assert float(outside[used].max()) < 1e-4
        costs = known.loss(
            {known.variables[0]: torch.ones(len(worst.atoms[i]), DIM).double()},
            worst.atoms[i],
            known={"lo": LO[i], "hi": HI[i]},
        )
        assert float((worst.probabilities[i] * costs).sum()) == pytest.approx(float(value[i]), abs=1e-4)


def test_what_it_offers() -> None:
    lo, hi = parameters()
    box = dro.support.Box(lo, hi)
    assert repr(box) == "Box(lo, hi)"
    assert dro.Uncertain(DIM, box).is_nonneg()
    assert not dro.Uncertain(DIM, dro.support.Box(hi)).is_nonneg()
    assert dro.Uncertain(DIM, dro.support.Box(0.0, hi)).is_nonneg()
    assert dro.Uncertain(DIM, dro.support.Polyhedron(C, cp.hstack([hi[0], np.zeros(2)]))).is_nonneg()
    assert isinstance(dro.support.Nonnegative() & dro.support.Box(-np.inf, hi), dro.support.Box)
    merged = dro.support.Box(lo) & dro.support.Box(-np.inf, hi)
    assert repr(merged) == "Box(lo, hi)"
    points = torch.tensor([[[1.0, 5.0]], [[0.0, 2.0]], [[1.0, 1.0]], [[3.0, 1.0]]], dtype=torch.float64)
    found = box.violation(points, {lo: LO, hi: HI})
    torch.testing.assert_close(found[:, 0], torch.tensor([1.0, 0.2, 0.0, 0.5], dtype=torch.float64))
    listed = dro.support.Box([0.0, lo[1]], hi).violation(points, {lo: LO, hi: HI})
    torch.testing.assert_close(listed[:, 0], torch.tensor([1.0, 0.0, 0.0, 0.5], dtype=torch.float64))
    assert lo.value is None
    hi.value = np.ones(DIM)
    dro.support.Box(0.0, 2.0 * hi)
    np.testing.assert_array_equal(hi.value, np.ones(DIM))


def test_matrices_and_numbers_for_all() -> None:
    hi, top = cp.Parameter((2, 3), nonneg=True, name="hi"), cp.Parameter(nonneg=True, name="top")
    values = torch.arange(1.0, 7.0, dtype=torch.float64).reshape(1, 2, 3)
    for end, data, flat in (
        (hi, {"hi": values}, values.reshape(-1)),
        (hi[0], {"hi": values}, values[0, :1].expand(2, 3).reshape(-1)),
        (top, {"top": torch.tensor([2.5])}, torch.full((6,), 2.5)),
    ):
        y, x = dro.Uncertain((2, 3), dro.support.Box(0.0, end)), cp.Variable((2, 3), nonneg=True)
        z = dro.Uncertain((2, 3), dro.support.Box(0.0, flat.numpy()))
        found, expected = (
            dro.DecisionProblem(
                cp.sum(x) + 3.0 * cp.sum(cp.pos(u - x)), [x <= 9], dro.MomentSet(u, [dro.moments.SquaredNorm()])
            )
            for u in (y, z)
        )
        theta = torch.tensor([[0.5] * 6 + [2.0]], dtype=torch.float64)
        value = found.solve(theta, known=data).objective
        torch.testing.assert_close(value, expected.solve(theta).objective, atol=1e-6, rtol=1e-6)


def test_one_uncertain_for_several_problems() -> None:
    _, hi = parameters()
    y, x, budget = (
        dro.Uncertain(DIM, dro.support.Box(0.0, hi)),
        cp.Variable(DIM, nonneg=True),
        cp.Parameter(name="budget"),
    )
    ambiguity = SETS["squared"](y)
    first = dro.DecisionProblem(piecewise(x, y), [x <= 6], ambiguity)
    second = dro.DecisionProblem(piecewise(x, y), [x <= 6, cp.sum(x) <= budget], ambiguity)
    assert first.known == {"hi": (DIM,)}
    assert second.known == {"budget": (), "hi": (DIM,)}


def test_known_data_of_the_cost_beside_that_of_the_support() -> None:
    """The ends multiply slopes that hold known data themselves."""
    price, hi = cp.Parameter(DIM, nonneg=True, name="price"), cp.Parameter(DIM, name="hi")
    prices = torch.tensor([[1.0, 2.0], [0.5, 0.1], [2.0, 2.0], [3.0, 0.2]], dtype=torch.float64)

    def build(p, support, name):
        y, x = dro.Uncertain(DIM, support), cp.Variable(DIM, nonneg=True)
        cost = cp.sum(x) + cp.multiply(p, y) @ x + 3.0 * cp.pos(p @ y - cp.sum(x))
        return dro.DecisionProblem(cost, [x <= 6, cp.sum(x) >= 1], SETS[name](y))

    for name in ("squared", "order 1", "order 2"):
        known = build(price, dro.support.Box(0.0, hi), name)
        theta, nominal = theta_for(known.ambiguity), nominal_for(known.ambiguity)
        solution = known.solve(theta, nominal, known={"price": prices, "hi": HI})
        for i in range(BATCH):
            constant = build(prices[i].numpy(), dro.support.Box(0.0, HI[i].numpy()), name)
            expected = constant.solve(theta[i : i + 1], row(nominal, i))
            assert float(solution.objective[i]) == pytest.approx(float(expected.objective[0]), abs=1e-6)


def test_bad_data_is_one_sentence() -> None:
    lo, hi = parameters()
    known = problem(box_both(lo, hi), "piecewise", "squared")
    theta = theta_for(known.ambiguity)
    with pytest.raises(dro.ShapeError, match="needs known data for \\['lo', 'hi'\\]"):
        known.solve(theta)
    with pytest.warns(UserWarning, match="lo is -1, against its declaration"):
        solution = known.solve(theta, known={"lo": torch.cat([LO[:3], -torch.ones(1, 2).double()]), "hi": HI})
    assert solution.ok.tolist() == [True, True, True, False]
    with pytest.raises(dro.ShapeError, match="The support of y needs known data"):
        known.ambiguity.emptiness(theta, None)
    x = cp.Variable(2)
    y = dro.Uncertain(2)
    for make, said in (
        (lambda: dro.support.Ellipsoid(hi, np.eye(2)), "centre cannot be known data"),
        (lambda: dro.support.Ellipsoid([0, 0], cp.Parameter((2, 2))), "L cannot be known data"),
        (lambda: dro.support.Conic([np.eye(2)], [hi]), "b_j cannot be known data"),
        (lambda: dro.support.Polyhedron(cp.Parameter((2, 2)), [1, 1]), "C cannot be known data"),
        (lambda: dro.support.Box(0.0, cp.square(hi)), "affine in CVXPY parameters"),
        (lambda: dro.support.Box(0.0, x), "affine in CVXPY parameters"),
        (lambda: dro.support.Box(0.0, cp.multiply(hi, lo)), "affine in CVXPY parameters"),
        (lambda: dro.Uncertain(3, dro.support.Box(0.0, hi)), "of shape \\(3,\\)"),
        (lambda: dro.Uncertain(2, dro.support.Box(0.0, y)), "which is not known"),
        (lambda: dro.support.Polyhedron(np.eye(3), hi), "shape"),
        (lambda: dro.support.Box([lo, hi]), "cp.hstack"),
        (lambda: dro.support.Box(0.0, cp.hstack([hi[0], np.inf])), "with &"),
    ):
        with pytest.raises(dro.ModelError, match=said):
            make()


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("make", [box_both, polyhedron])
def test_projection(make, order: int) -> None:
    lo, hi = parameters()
    y = dro.Uncertain(DIM, make(lo, hi))
    ambiguity = dro.Wasserstein(y, 3, norm=2, order=order)
    atoms, weights = nominal_for(ambiguity)
    data = {"lo": LO + 1.0, "hi": HI, "stock": torch.ones(BATCH)}
    projection, theta = dro.Projection(ambiguity), torch.full((BATCH, 1), 0.01, dtype=torch.float64)
    found = projection(theta, (atoms, weights), known=data)
    for i in range(BATCH):
        constant = dro.Wasserstein(dro.Uncertain(DIM, make(LO[i].numpy() + 1.0, HI[i].numpy())), 3, norm=2, order=order)
        expected = dro.Projection(constant)(theta[:1], (atoms[:1], weights[:1]))
        assert float(found[i]) == pytest.approx(float(expected[0]), abs=1e-7)
    assert float(found.max()) > 0.1
    with pytest.raises(dro.ShapeError, match="needs known data"):
        projection(theta, (atoms, weights))
    with pytest.raises(dro.ShapeError, match="has 4 items, but theta has 1"):
        projection(theta[:1], (atoms[:1], weights[:1]), known=data)
    nothing = {name: value[:0] for name, value in data.items()}
    assert projection(theta[:0], (atoms[:0], weights[:0]), known=nothing).shape == (0, 1)
    if make is box_both:
        low = (LO + 1.0).requires_grad_()
        projection(theta, (atoms, weights), known={"lo": low, "hi": HI}).sum().backward()
        assert float(low.grad.abs().sum()) > 0.1


def test_projection_of_moment_sets_is_never_empty() -> None:
    """Outcomes of other days are moved into today's box; what no box can hold is remarked upon."""
    lo, hi = parameters()
    known = problem(box_both(lo, hi), "piecewise", "squared")
    atoms, weights = nominal_for(SETS["order 1"](known.ambiguity.y))
    today = {"lo": 0.1 * LO, "hi": 0.2 * HI}
    theta = torch.tensor([[1.5, 1.5, 0.01]], dtype=torch.float64).expand(BATCH, -1).contiguous()
    assert known.solve(theta, known=today).status.tolist() == [int(Status.EMPTY_SET)] * BATCH
    projected = dro.Projection(known.ambiguity, margin=1e-3)(theta, (atoms, weights), known=today)
    assert bool(known.solve(projected, known=today).ok.all())
    inside = torch.minimum(torch.maximum(atoms, today["lo"][:, None]), today["hi"][:, None])
    torch.testing.assert_close(
        projected, dro.Projection(known.ambiguity, margin=1e-3)(theta, (inside, weights), known=today)
    )
    today["hi"][1] = -1.0
    report = dro.Projection(known.ambiguity).status(theta, (atoms, weights), known=today)
    assert report.ok.tolist() == [True, False, True, True]
    today["hi"][1] = torch.nan
    assert bool(dro.Projection(known.ambiguity)(theta, (atoms, weights), known=today).isfinite().all())
    wide = dro.MomentSet(dro.Uncertain(DIM, polyhedron(lo, hi)), [dro.moments.SquaredNorm()])
    report = dro.Projection(wide).status(theta, (atoms, weights), known={"lo": 2.0 * LO, "hi": HI})
    assert report.ok.tolist() == [True, False, True, False]


def newsvendor(ambiguity):
    hi = cp.Parameter(DIM, nonneg=True, name="hi")
    y, x = dro.Uncertain(DIM, dro.support.Box(0.0, hi)), cp.Variable(DIM, nonneg=True, name="x")
    return dro.DecisionProblem(
        piecewise(x, y), [x <= 10], SETS[ambiguity](y) if ambiguity != "ball" else dro.Wasserstein(y, 5)
    )


@pytest.mark.parametrize("ambiguity", ["squared", "ball"])
def test_learner(ambiguity: str, tmp_path) -> None:
    known, rng = newsvendor(ambiguity), np.random.default_rng(0)
    Z = rng.normal(size=(40, 2))
    caps = rng.uniform(2.0, 4.0, (40, DIM))
    Y = np.minimum(np.abs(Z + 2.0), caps)
    learner = dro.DecisionFocusedLearner(
        known,
        nominal=dro.nominal.KNN(k=5),
        pretraining=None,
        training=Stage(epochs=2),
        trainer=dro.learning.Trainer(),
        seed=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learner.fit(Z, Y, known={"hi": caps})
        decision = learner.decision(Z, {"hi": caps})
        assert bool(decision.ok.all())
        lower = learner.decision(Z, {"hi": 0.7 * caps})
    x = known.variables[0]
    assert bool((decision.best[x] <= torch.as_tensor(caps) + 1e-5).all())
    assert not torch.allclose(decision.best[x], lower.best[x])
    assert set(learner.predict_set(Z, {"hi": caps})) == set(known.ambiguity.parameters)
    learner.save(tmp_path / "saved")
    again = dro.DecisionFocusedLearner.load(tmp_path / "saved", known)
    assert torch.equal(again.decision(Z, {"hi": caps}).best[x], decision.best[x])


@pytest.mark.parametrize(
    "name", ["SampleAverage", "WeightedSampleAverage", "MeanPrediction", "PredictionFocused", "NoSet"]
)
def test_baselines(name: str) -> None:
    known, rng = newsvendor("squared"), np.random.default_rng(0)
    Z, caps = rng.normal(size=(30, 2)), rng.uniform(3.0, 5.0, (30, DIM))
    Y = np.minimum(np.abs(Z + 2.0), caps)
    model = getattr(dro.baselines, name)(known).fit(Z, Y, known={"hi": caps})
    x, lower = (model.decide(Z, {"hi": hi})[known.variables[0]] for hi in (caps, 0.6 * caps))
    if name == "PredictionFocused":
        # The only one with a set: nothing above the support is worth stocking.
        assert (x <= caps + 1e-5).all()
        assert (lower <= 0.6 * caps + 1e-5).all()
        assert np.abs(x - lower).max() > 0.1
        return
    # By hand: an item is short with probability 1/3 at the optimum, 1 - 4 / 3 + 0.5 · 2 / 3 = 0; a point is stocked.
    atoms = model.nominal_(torch.as_tensor(Z))[0].sort(1).values.numpy() if name == "WeightedSampleAverage" else None
    low, high = {
        "SampleAverage": lambda: (np.sort(Y, 0)[19], np.sort(Y, 0)[20]),
        "WeightedSampleAverage": lambda: (atoms[:, 13], atoms[:, 13]),
        "MeanPrediction": lambda: 2 * (np.maximum(model.predict_mean(Z), 0.0),),
        "NoSet": lambda: 2 * (np.maximum(model.learner_.predict_set(Z, {"hi": caps})["0.mu"], 0.0),),
    }[name]()
    assert ((low - 1e-4 <= x) & (x <= high + 1e-4)).all()
    np.testing.assert_allclose(lower, x, atol=1e-4)
