"""Points at machine precision: finite differences see no noise, and a row is decided the same in every batch."""

from __future__ import annotations

import pytest
import torch

from conelayers import Derivative, make_engine
from tests.helpers.programs import family


@pytest.mark.parametrize("name", ["lp", "lp_matrix", "qp", "qp_weights", "socp", "portfolio"])
@pytest.mark.parametrize("engine", ["batched", "torch"])
def test_every_family_agrees_item_by_item(name: str, engine: str) -> None:
    """Where the derivative is that of one face, the solution is unique and strictly complementary."""
    made, solver = family(name), make_engine(engine)
    theta = made.theta(16).requires_grad_()
    whole = solver.solve(made.program, theta)
    whole.primal.sum().backward()
    regular = whole.derivative == int(Derivative.FACE)
    assert regular.any()
    alone = torch.cat([solver.solve(made.program, row).primal for row in theta.detach().split(1)])
    assert torch.allclose(whole.primal[regular], alone[regular], rtol=1e-9, atol=1e-9)
