"""ConeLayer: arguments, shapes, types, failures, copies."""

from __future__ import annotations

import copy
import pickle
import warnings

import cvxpy as cp
import numpy as np
import pytest
import torch

from conelayers import ConeLayer, Smoothed, Status
from conelayers.errors import LayerError, ModelError, ShapeError, SolveError, UnsolvedItemsWarning

torch.manual_seed(0)


class Projection:
    """min ‖x - c‖²  subject to  sum(x) = s, x ≥ 0."""

    def __init__(self, **settings: object) -> None:
        self.x, self.c, self.s = cp.Variable(3, name="x"), cp.Parameter(3, name="c"), cp.Parameter(name="s")
        self.constraints = [cp.sum(self.x) == self.s, self.x >= 0]
        self.problem = cp.Problem(cp.Minimize(cp.sum_squares(self.x - self.c)), self.constraints)
        self.layer = ConeLayer(self.problem, [self.c, self.s], [self.x], **settings)


@pytest.fixture(name="own")
def _own() -> Projection:
    return Projection()


CENTRE = torch.tensor([0.5, 0.2, -1.0], dtype=torch.float64)
INSIDE = torch.tensor([0.65, 0.35, 0.0], dtype=torch.float64)


def test_shapes_mix(own: Projection) -> None:
    one, many = torch.tensor(1.0, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    torch.testing.assert_close(own.layer(CENTRE, one)[0], INSIDE)
    for arguments, batch in (
        ((CENTRE.expand(4, 3), one), 4),
        ((CENTRE, many), 4),
        ((CENTRE.expand(4, 3), many), 4),
        ((CENTRE[None], one), 1),
        ((CENTRE[None], many), 4),
    ):
        (x,) = own.layer(*arguments)
        torch.testing.assert_close(x, INSIDE.expand(batch, 3))
        result = own.layer.solve(*arguments)
        assert result.value.shape == result.gap.shape == result.status.shape == (batch,)
        assert result.dual(own.constraints[1]).shape == (batch, 3)


def test_empty_batch(own: Projection) -> None:
    c = torch.zeros(0, 3, requires_grad=True)
    (x,) = own.layer(c, torch.tensor(1.0))
    assert x.shape == (0, 3)
    x.sum().backward()
    assert c.grad is not None
    assert c.grad.shape == (0, 3)
    assert own.layer.solve(c, torch.tensor(1.0)).dual(own.constraints[0]).shape == (0,)


def test_one_item_with_a_batch_dimension_has_a_gradient_with_one(own: Projection) -> None:
    c = CENTRE[None].clone().requires_grad_()
    own.layer(c, 1.0)[0][0, 0].backward()
    # On the face x₃ = 0 the solution is c - (sum(c) - 1)/2.
    torch.testing.assert_close(c.grad, torch.tensor([[0.5, -0.5, 0.0]], dtype=torch.float64))


def test_values_by_name_and_by_parameter(own: Projection) -> None:
    for arguments, named in (
        (({own.c: CENTRE, own.s: 1.0},), {}),
        (({"c": CENTRE.numpy(), own.s: 1},), {}),
        ((), {"s": np.float64(1.0), "c": CENTRE.tolist()}),
        ((CENTRE.to_sparse(), torch.tensor(1)), {}),
    ):
        torch.testing.assert_close(own.layer(*arguments, **named)[0].double(), INSIDE, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_answers_have_the_type_of_the_arguments(own: Projection, dtype: torch.dtype) -> None:
    c = CENTRE.to(dtype).clone().requires_grad_()
    result = own.layer.solve(c, torch.tensor(1.0, dtype=dtype))
    assert result["x"].dtype == result.value.dtype == result.dual(own.constraints[0]).dtype == dtype
    result.value.backward()
    assert c.grad is not None
    assert c.grad.dtype == dtype
    assert own.layer(CENTRE.numpy(), 1)[0].dtype == torch.float64
    assert own.layer(torch.zeros(3, dtype=torch.int64), 1)[0].dtype == torch.get_default_dtype()


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        ((CENTRE,), {}, r"takes 2 arguments \['c', 's'\], got 1"),
        ((), {}, "takes 2 arguments"),
        ((CENTRE, None), {}, "`s` must be a tensor or an array, got NoneType"),
        ((CENTRE, "1"), {}, "`s` must be a tensor or an array, got str"),
        ((CENTRE[:2], 1.0), {}, r"`c` must have shape \(3,\) or \(batch, 3\), got \(2,\)"),
        ((torch.zeros(2, 2, 3), 1.0), {}, r"`c` must have shape .* got \(2, 2, 3\)"),
        ((CENTRE, torch.zeros(2, 1)), {}, r"`s` must have shape \(\) or \(batch,\), got \(2, 1\)"),
        ((torch.zeros(2, 3), torch.zeros(5)), {}, r"different sizes \[2, 5\]"),
        ((CENTRE + 0j, 1.0), {}, "`c` is complex"),
        ((torch.zeros(3, device="meta"), 1.0), {}, "meta device"),
        ((CENTRE,), {"s": 1.0}, "not both"),
        ((), {"c": CENTRE}, "Parameter s has no value"),
        (({"c": CENTRE, "s": 1.0, "t": 1.0},), {}, r"\['t'\] are no parameters"),
    ],
)
def test_wrong_arguments(
    own: Projection, arguments: tuple[object, ...], named: dict[str, object], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        own.layer(*arguments, **named)


def test_values_of_parameters_with_one_name_are_ambiguous() -> None:
    x, a, b = cp.Variable(name="x"), cp.Parameter(name="a"), cp.Parameter(name="a")
    layer = ConeLayer(cp.Problem(cp.Minimize(cp.square(x - a - 2 * b))), [a, b])
    with pytest.raises(ShapeError, match="2 parameters are called a"):
        layer(a=1.0)
    torch.testing.assert_close(layer({a: 1.0, b: 2.0})[0], torch.tensor(5.0), atol=1e-6, rtol=0)


def test_wrong_models(own: Projection) -> None:
    problem, x, c, s = own.problem, own.x, own.c, own.s
    other = cp.Variable(name="other")
    for arguments, message in (
        ((3, [c, s], [x]), "`problem` must be a cp.Problem"),
        ((problem, [c], [x]), r"missing: \['s'\]"),
        ((problem, [c, s, s], [x]), "once"),
        ((problem, [c, s, cp.Parameter(name="q")], [x]), r"not in the problem: \['q'\]"),
        ((problem, c, [x]), "list of cp.Parameters"),
        ((problem, [c, 3], [x]), "list of cp.Parameters"),
        ((problem, [c, s], [other]), r"\['other'\] are neither variables"),
        ((problem, [c, s], ["x"]), "are neither variables"),
        ((problem, [c, s], x), r"Use \[x\]"),
        ((cp.Problem(cp.Maximize(cp.sum_squares(x - c))), [c], [x]), "Not convex"),
        ((cp.Problem(cp.Minimize(cp.sum(x) * s), [x >= s * s]), [s], [x]), "Not DPP"),
    ):
        with pytest.raises(ModelError, match=message):
            ConeLayer(*arguments)
    for settings, message in (
        ({"engine": "none"}, "engine"),
        ({"gradient": "none"}, "gradient"),
        ({"temperature": "warm"}, "temperature"),
        ({"time_limit": -1.0}, "time_limit"),
        ({"on_failure": "ignore"}, "on_failure"),
        ({"candidates": 0}, "candidates"),
        ({"solver": "CLARABEL", "engine": "batched"}, "Leave out `solver`"),
        ({"solver": "SIMPLEX"}, "Unknown solver 'SIMPLEX'"),
        ({"solver_args": {"digits": 3}}, r"Unknown settings \['digits'\]"),
        ({"solver_args": 1e-8}, "must be a dict"),
        ({"solver_args": {"eps": -1.0}}, "positive"),
    ):
        with pytest.raises(ModelError, match=message):
            ConeLayer(problem, [c, s], [x], **settings)


def test_unsolved_items_are_nan_with_a_zero_gradient(own: Projection) -> None:
    c = torch.stack([CENTRE, CENTRE, CENTRE]).index_put(
        (torch.tensor(1), torch.tensor(0)), torch.tensor(torch.nan).double()
    )
    c.requires_grad_()
    s = torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64, requires_grad=True)
    with pytest.warns(UnsolvedItemsWarning, match="2 of 3 items"):
        result = own.layer.solve(c, s)
    assert result.statuses == [Status.OPTIMAL, Status.FAILED, Status.INFEASIBLE]
    for tensor in (result["x"], result.value, result.dual(own.constraints[1]), result.gap):
        assert tensor[0].isfinite().all()
        assert tensor[1:].isnan().all()
    (result["x"][:, 0].sum() + result.value.sum()).backward()
    assert c.grad is not None
    assert (c.grad[1:] == 0).all()
    assert (c.grad[0] != 0).any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own.layer(c, s)


def test_failures_can_raise() -> None:
    own = Projection(on_failure="raise")
    with pytest.raises(SolveError) as error:
        own.layer(CENTRE, torch.tensor([1.0, -1.0]))
    assert error.value.items == {1: Status.INFEASIBLE}


def test_an_unbounded_problem_is_nan() -> None:
    x, b = cp.Variable(name="x"), cp.Parameter(name="b")
    layer = ConeLayer(cp.Problem(cp.Minimize(x), [x <= b]), [b])
    b_value = torch.tensor(1.0, requires_grad=True)
    with pytest.warns(UnsolvedItemsWarning):
        (point,) = layer(b_value)
    assert point.isnan()
    point.backward()
    assert b_value.grad == 0


def test_solutions_that_depend_on_no_parameter_have_zero_gradients() -> None:
    x, b = cp.Variable(name="x"), cp.Parameter(name="b")
    layer = ConeLayer(cp.Problem(cp.Minimize(cp.square(x - 1) + b)), [b])
    b_value = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    result = layer.solve(b_value)
    (result["x"] + result.value).backward()
    torch.testing.assert_close(result.value.detach(), b_value.detach())
    assert b_value.grad == 1


def test_solver_args_only_make_the_engine_more_accurate(own: Projection) -> None:
    for setting in ({"eps": 1e-1}, {"max_iters": 1}, {"tol": 1e-12, "max_iter": 1000}):
        assert (own.layer(CENTRE, 1.0, solver_args=setting)[0] - INSIDE).abs().max() < 1e-6
    with pytest.warns(UserWarning, match="verbose"):
        own.layer(CENTRE, 1.0, solver_args={"verbose": True})


def test_copies_solve_alike(own: Projection) -> None:
    expected = own.layer(CENTRE, 1.0)[0]
    layer, x, constraints = pickle.loads(pickle.dumps((own.layer, own.x, own.constraints)))
    for twin in (layer, copy.deepcopy(own.layer), torch.nn.Sequential(own.layer)[0].to(torch.float32).eval()):
        assert torch.equal(twin(CENTRE, 1.0)[0], expected)
        result = twin.solve({own.c: CENTRE, "s": 1.0})
        assert torch.equal(result[own.x], expected)
        assert torch.equal(result.candidates[own.x][0], expected[None])
        result.dual(own.constraints[0])
    result = layer.solve(CENTRE, 1.0)
    assert torch.equal(result[x], expected)
    assert torch.equal(pickle.loads(pickle.dumps(result)).dual(constraints[0]), result.dual(own.constraints[0]))
    assert own.layer.state_dict() == {}
    own.layer.load_state_dict({})


def test_foreign_variables_and_constraints_are_refused(own: Projection) -> None:
    result = own.layer.solve(CENTRE, 1.0)
    other = cp.Variable(3, name="x")
    for read in (
        lambda: result[other],
        lambda: result["y"],
        lambda: result.dual(other >= 0),
        lambda: result.dual("z"),
        lambda: result.dual(own.constraints[0], 1),
        lambda: result.expected(lambda points: points[other].sum(-1)),
        lambda: result.expected(lambda points: points[own.x]),
    ):
        with pytest.raises(LayerError):
            read()


def test_no_grad_and_modes(own: Projection) -> None:
    c = CENTRE.clone().requires_grad_()
    with torch.no_grad():
        assert not own.layer(c, 1.0)[0].requires_grad
    assert not own.layer(CENTRE, 1.0)[0].requires_grad
    for training in (True, False):
        result = own.layer.train(training).solve(c, 1.0)
        torch.testing.assert_close(result.expected(lambda points: points[own.x].sum(-1)), result[own.x].sum())
        assert result.mean(lambda points: points[own.x].sum(-1))[1] == 1


def test_explain_and_change_of_gradient(own: Projection) -> None:
    assert "exactly" in own.layer.explain()
    own.layer.gradient = Smoothed(1e-2)
    assert "level 0.01" in own.layer.explain()
    assert "'c': (3,)" in repr(own.layer)
    own.layer.temperature = 2.0
    assert own.layer.temperature == 2.0
    with pytest.raises(ModelError, match="temperature"):
        own.layer.temperature = -1.0
