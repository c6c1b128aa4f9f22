"""torch.compile works; what cannot pass through a solver says in one sentence what to use."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import drolayers as dro
from tests.learning.small import shop

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
