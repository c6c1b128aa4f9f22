"""torch.compile works; what cannot pass through a solver says in one sentence what to use."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from inspect import signature

import cvxpy as cp
import pytest
import torch
from torch import Tensor

import drolayers as dro
from tests.drolayers.learning.small import learner, sales, shop

SHOP = shop(False)
LAYER = dro.DROLayer(SHOP.problem)
THETA = torch.tensor([[2.5, 2.5, 0.5], [2.0, 3.0, 0.6]], dtype=torch.float64)


def bought(theta: Tensor) -> Tensor:
    return LAYER(theta).best[SHOP.retail]


def worst(theta: Tensor) -> Tensor:
    return SHOP.problem.worst_case_cost({SHOP.retail: THETA[:, :2]}, theta)


def test_compile_leaves_the_layer_to_its_solver() -> None:
    model = torch.nn.Linear(1, 3).double()
    z = torch.rand(2, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def step(z: Tensor) -> Tensor:
        return LAYER(model(z) ** 2 + 1.0).expected(lambda x: SHOP.problem.loss(x, THETA[:, :2])).mean()

    found = []
    for run in (step, torch.compile(step, backend="eager")):
        model.zero_grad()
        run(z).backward()
        assert model.weight.grad is not None
        found.append(model.weight.grad.clone())
    assert float(found[0].abs().max()) > 0
    torch.testing.assert_close(*found)
    torch.testing.assert_close(torch.compile(LAYER, backend="eager")(THETA).best[SHOP.retail], bought(THETA))


def forward_mode(f: Callable[[Tensor], Tensor]) -> object:
    import torch.autograd.forward_ad as forward_ad

    with forward_ad.dual_level():
        return f(forward_ad.make_dual(THETA, torch.ones_like(THETA)))


def batched(f: Callable[[Tensor], Tensor]) -> object:
    theta = THETA.clone().requires_grad_()
    out = f(theta)
    return torch.autograd.grad(out, theta, torch.ones(3, *out.shape, dtype=out.dtype), is_grads_batched=True)


@pytest.mark.parametrize("f", [bought, worst])
@pytest.mark.parametrize(
    "transform",
    [
        lambda f: torch.func.jacrev(f)(THETA),
        lambda f: torch.func.jacfwd(f)(THETA),
        lambda f: torch.func.hessian(lambda t: f(t).sum())(THETA),
        lambda f: torch.func.grad(lambda t: f(t).sum())(THETA),
        lambda f: torch.func.vmap(lambda t: f(t.expand(2, 3)))(THETA),
        lambda f: torch.func.vmap(torch.func.grad(lambda t: f(t.expand(2, 3)).sum()))(THETA),
        lambda f: torch.autograd.functional.jacobian(f, THETA, vectorize=True),
        forward_mode,
        batched,
    ],
)
def test_other_transforms_say_what_to_use(transform: Callable[[object], object], f: object) -> None:
    with pytest.raises(dro.DifferentiationError, match=r"torch\.autograd\.functional\.jacobian") as caught:
        transform(f)
    assert "\n" not in str(caught.value)


BALL = shop(False, "ball").problem
NOMINAL = (THETA[:, None, :2] + torch.arange(5.0, dtype=torch.float64)[:, None], torch.full((2, 5), 0.2).double())
RADIUS = torch.full((2, 1), 0.5, dtype=torch.float64)


def decided(theta: Tensor, atoms: Tensor) -> Tensor:
    return dro.DROLayer(BALL)(theta, (atoms, NOMINAL[1][: len(atoms)])).value


def attained(theta: Tensor, atoms: Tensor) -> Tensor:
    chosen = {BALL.variables[0]: THETA[: len(theta), :2]}
    return BALL.worst_case_distribution(chosen, theta, (atoms, NOMINAL[1][: len(atoms)])).probabilities


@pytest.mark.parametrize("f", [decided, attained])
@pytest.mark.parametrize(
    "transform",
    [
        lambda f: torch.func.jacrev(f)(RADIUS, NOMINAL[0]),
        lambda f: torch.func.jacfwd(f, 1)(RADIUS, NOMINAL[0]),
        lambda f: torch.func.vmap(lambda atoms: f(RADIUS[:1], atoms[None]))(NOMINAL[0]),
        lambda f: torch.func.vmap(lambda theta: f(theta[None], NOMINAL[0][:1]))(RADIUS),
        # Nothing depends on what is differentiated, or batched.
        lambda f: torch.func.grad(lambda w: w * f(RADIUS, NOMINAL[0]).sum())(torch.ones(())),
        lambda f: torch.func.vmap(lambda w: w * f(RADIUS, NOMINAL[0]).sum())(torch.ones(2)),
    ],
)
def test_nominal_distributions_and_worst_ones_too(transform: Callable[[object], object], f: object) -> None:
    with pytest.raises(dro.DifferentiationError, match=r"torch\.autograd\.functional\.jacobian"):
        transform(f)


def test_decisions_that_are_evaluated_and_known_data_too() -> None:
    y, x, stock = dro.Uncertain(1), cp.Variable(1, name="x"), cp.Parameter(1, name="stock")
    problem = dro.DecisionProblem(cp.sum(cp.abs(y - x - stock)), [], dro.MomentSet(y, [dro.moments.Absolute()]))
    theta, two = torch.ones(1, problem.size, dtype=torch.float64), torch.ones(2, 1, dtype=torch.float64)
    told = {"stock": torch.zeros(1, 1)}
    for f in (
        lambda v: problem.worst_case_cost({x: v[None]}, theta, known=told),
        lambda v: problem.worst_case_distribution({x: v[None]}, theta, known=told).probabilities,
        lambda v: dro.DROLayer(problem)(theta, known={"stock": v[None]}).value,
    ):
        with pytest.raises(dro.DifferentiationError, match="give all items as one batch"):
            torch.func.vmap(f)(two)


@pytest.mark.parametrize("ask", ["predict", "predict_set"])
def test_learners_too(ask: str) -> None:
    """What they answer has no gradient, which is not the same as one of zero."""
    Z, Y = sales(8)
    asked = getattr(learner(SHOP.problem, pretraining__epochs=0, training=None).fit(Z, Y), ask)
    contexts = torch.as_tensor(Z)

    def answer(z: Tensor) -> Tensor:
        told = asked(z)
        return told if isinstance(told, Tensor) else torch.cat([v.flatten(1) for v in told.values()], 1)

    for transform in (
        lambda: torch.func.jacrev(answer)(contexts),
        lambda: torch.func.jvp(answer, (contexts,), (contexts,)),
        lambda: torch.func.vmap(lambda z: answer(z[None]))(contexts),
    ):
        with pytest.raises(dro.DifferentiationError, match="give all items as one batch"):
            transform()


@pytest.mark.parametrize("kind", [dro.nominal.KNN(3), dro.nominal.Kernel(max_atoms=3), dro.nominal.Forest(trees=2)])
def test_data_cannot_be_looked_up_within_vmap(kind: dro.nominal.NominalDistribution) -> None:
    Z, Y = sales(8)
    nominal = kind.fit(Z, Y)
    with pytest.raises(dro.DifferentiationError, match="give all items as one batch"):
        torch.func.vmap(lambda z: nominal(z[None]).weights)(torch.as_tensor(Z))


def test_inference_mode_changes_nothing() -> None:
    for f in (decided, attained):
        expected = f(RADIUS, NOMINAL[0])
        with torch.inference_mode():
            torch.testing.assert_close(f(RADIUS, NOMINAL[0].clone()), expected)


def test_nothing_of_a_transform_is_kept() -> None:
    """What is first asked for within one was built there, and could not be pickled any more."""
    for ask in (
        lambda problem, theta: problem.worst_case_cost({problem.variables[0]: THETA[:, :2]}, theta),
        lambda problem, theta: problem.worst_case_distribution({problem.variables[0]: THETA[:, :2]}, theta).atoms,
        lambda problem, theta: problem.program.values(theta[:, :1].expand(-1, problem.program.feature_size)).b,
        lambda problem, theta: problem.ambiguity.emptiness(theta - 3.0, None),
        lambda problem, theta: dro.Projection(problem.ambiguity, method="conic")(theta, NOMINAL),
    ):
        for transform in (torch.func.jacrev, torch.func.jacfwd):
            problem = shop(False).problem
            with contextlib.suppress(dro.DifferentiationError):
                transform(lambda theta, problem=problem, ask=ask: ask(problem, theta))(THETA)
            layer = dro.DROLayer(problem)
            pickle.dumps(layer)
            layer(THETA)
            ask(problem, THETA)
            pickle.dumps(layer)


@pytest.mark.parametrize(
    "ask",
    [
        lambda problem: problem.solve(RADIUS, NOMINAL).objective,
        lambda problem: problem.worst_case_cost({problem.variables[0]: THETA[:, :2]}, RADIUS, NOMINAL),
        lambda problem: (
            problem.worst_case_distribution({problem.variables[0]: THETA[:, :2]}, RADIUS, NOMINAL).probabilities
        ),
    ],
)
def test_compiled_functions_leave_problems_to_their_solvers(ask: Callable[[dro.DecisionProblem], Tensor]) -> None:
    """Also what is asked for the first time there, whose program is compiled then."""
    expected = ask(BALL)
    for problem in (BALL, shop(False, "ball").problem):
        torch.compiler.reset()
        found = torch.compile(lambda problem=problem: ask(problem), backend="eager")()
        torch.testing.assert_close(found, expected)


TILTED = dro.support.Polyhedron([[1.0, 1.0]], [15.0])
SETS = {
    "norm": (dro.support.Nonnegative(), lambda y: dro.MomentSet(y, [dro.moments.Norm(2), dro.moments.SquaredNorm()])),
    "ball": (TILTED, lambda y: dro.Wasserstein(y, 5)),
    "ellipsoid": (TILTED, lambda y: dro.Outcomes(y, "ellipsoid")),
    "second-order": (TILTED, lambda y: dro.MeanCovariance(y)),
}


@pytest.mark.parametrize("name", list(SETS))
def test_sets_and_projections_that_are_asked_first_within_a_compiled_function(name: str) -> None:
    """They compile programs of their own, which are left to CVXPY and its solver."""
    support, make = SETS[name]
    atoms, weights = NOMINAL[0].expand(2, 5, 2), NOMINAL[1]
    found = []
    for run in (lambda f: f, lambda f: torch.compile(f, backend="eager")):
        ambiguity = make(dro.Uncertain(2, support=support))
        projection = dro.Projection(ambiguity, margin=0.1)
        generator = torch.Generator().manual_seed(0)
        theta = torch.rand(2, ambiguity.size, generator=generator, dtype=torch.float64) + 8.0
        torch.compiler.reset()

        def ask(theta: Tensor, ambiguity=ambiguity, projection=projection) -> tuple[Tensor, Tensor]:
            moved = projection(theta, (atoms, weights))
            return moved, ambiguity.emptiness(theta, (atoms + 9.0, weights) if ambiguity.needs_nominal else None)

        found.append(run(ask)(theta))
    torch.testing.assert_close(found[1], found[0])


def test_metrics_within_a_compiled_function() -> None:
    chosen = {SHOP.retail: THETA[:, :2]}
    torch.compiler.reset()
    found = torch.compile(lambda y: dro.metrics.hindsight(SHOP.problem, y), backend="eager")(THETA[:, :2])
    torch.testing.assert_close(found, dro.metrics.hindsight(SHOP.problem, THETA[:, :2]))
    assert dro.metrics.regret(SHOP.problem, chosen, THETA[:, :2]) == pytest.approx(0.0, abs=1e-6)


def test_a_whole_graph_is_refused_with_the_reason() -> None:
    if "reason" not in signature(torch.compiler.disable).parameters:
        pytest.skip("this torch tells no reasons")
    torch.compiler.reset()
    with pytest.raises(Exception, match="leave out fullgraph=True"):
        torch.compile(LAYER, backend="eager", fullgraph=True)(THETA)


def test_what_they_are_told_to_use_works() -> None:
    found = torch.autograd.functional.jacobian(bought, THETA)
    assert found.shape == (2, 2, 2, 3)
    step = 1e-3
    for k in range(3):
        change = torch.zeros_like(THETA)
        change[:, k] = step
        differences = (bought(THETA + change) - bought(THETA - change)) / (2 * step)
        torch.testing.assert_close(torch.einsum("iaik->iak", found)[..., k], differences, atol=1e-4, rtol=1e-3)


def test_the_closed_form_of_a_projection_passes() -> None:
    nominal = (torch.rand(2, 5, 2, dtype=torch.float64) + 2, torch.full((2, 5), 0.2, dtype=torch.float64))
    projection = dro.Projection(SHOP.problem.ambiguity)
    found = torch.func.jacrev(lambda t: projection(t, nominal))(THETA)
    torch.testing.assert_close(found, torch.autograd.functional.jacobian(lambda t: projection(t, nominal), THETA))
    pickle.dumps(projection)
