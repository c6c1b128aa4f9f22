"""From data to decisions: one linear model and the paper's newsvendor, under each of its three sets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import drolayers as dro
from tests.drolayers.surrogate.problems import Case, newsvendor

MOMENTS = {
    "SOC-I": [dro.moments.Norm(1)],
    "SOC-II": [dro.moments.SquaredNorm()],
    "SOC-III": [dro.moments.Norm(1), dro.moments.SquaredNorm()],
}
MARGIN = 20.0
"""By how much the mean decision loss must fall; it begins above 80, and no policy comes below 30."""


def draw(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Appendix D.1: z uniform, demand i normal with mean base_i + 6(z-c_i)² and deviation 1/(1+8|z-c_i|)."""
    rng = np.random.default_rng(seed)
    z = rng.uniform(size=(count, 1))
    gap = z - np.array([0.2, 0.4, 0.6, 0.8])
    y = np.array([8.0, 11.0, 14.0, 17.0]) + 6 * gap**2 + rng.standard_normal((count, 4)) / (1 + 8 * np.abs(gap))
    return torch.as_tensor(z), torch.as_tensor(y)


class Linear(nn.Module):
    """θ as an affine function of z; bounds are made positive."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        ambiguity = case.problem.ambiguity
        self.affine = nn.Linear(1, ambiguity.size, dtype=torch.float64)
        is_bound = {
            name: torch.full((1, *shape), name.endswith("sigma")) for name, shape in ambiguity.parameters.items()
        }
        self.bound = ambiguity.pack(is_bound)[0]
        with torch.no_grad():
            self.affine.weight.zero_()
            # Every demand is believed to be the same.
            self.affine.bias.copy_(torch.where(self.bound, 2.0, 12.5))

    def forward(self, z: Tensor) -> Tensor:
        raw = self.affine(z)
        return torch.where(self.bound, nn.functional.softplus(raw), raw)


@pytest.mark.parametrize("name", MOMENTS)
def test_training_lowers_the_decision_loss(name: str) -> None:
    case = newsvendor(MOMENTS[name], [])
    problem = case.problem
    layer = dro.DROLayer(problem, candidates=3, samples=4, temperature=10.0)
    model = Linear(case)
    (z, y), (z_test, y_test) = draw(64, seed=0), draw(64, seed=1)

    def true_loss() -> float:
        with torch.no_grad():
            decision = layer.eval()(model(z_test))
        layer.train()
        assert bool(decision.ok.all())
        return float(problem.loss(decision.best, y_test).mean())

    before = true_loss()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.3)
    for epoch in range(6):
        layer.temperature = 10.0 * 0.6**epoch
        for rows in torch.arange(64).split(16):
            optimiser.zero_grad()
            loss, count = layer(model(z[rows])).mean(lambda x, rows=rows: problem.loss(x, y[rows]))
            assert count == 16
            loss.backward()
            optimiser.step()
    assert true_loss() < before - MARGIN
