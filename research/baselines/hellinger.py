"""Portfolios that are best against the worst of a Hellinger ball of scenario weights, solved in batches.

For scenarios ε_j of the residual returns and a reward vector g (risk appetite times expected returns),

    min_{x ∈ Δ}  max_{p ∈ P(δ)}  min_c  Σ_j p_j (ε_jᵀx - c)²  -  gᵀx,
    P(δ) = { p ∈ Δ : (1/T) Σ_j φ(T p_j) ≤ δ },   φ(t) = (√t - 1)².

The dual. The inner function is convex in c and linear in p, so that max and min change places. With z_j = (ε_jᵀx - c)²,
multipliers λ of the ball and ξ of Σp = 1, and the conjugate φ*(s) = s/(1 - s) for s < 1,

    max_p Σ p_j z_j  =  min_{λ ≥ 0, ξ}  ξ + δλ + (λ/T) Σ_j φ*((z_j - ξ)/λ),

and λφ*(d/λ) = d + d²/(λ - d). With ρ = √δ and λ scaled by it, which keeps λ bounded as δ → 0, the program is

    min  ξ + ρλ + (1/T) Σ_j (d_j + ρ q_j) - gᵀx   s.t.  z_j ≤ d_j + ξ,   d_j² ≤ q_j (λ - ρ d_j),   x ∈ Δ:

two small cones a scenario, and (ε, g, ρ) enter affinely.

Two routes. With d and q at their bounds what is left is smooth in (x, c, ξ, λ) (``hellinger_smooth.py``): a batch is
solved there, which is several times faster than the 200 cones of an item, and differentiated there, exactly. Items that
are left unfinished go to the engine as cone programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import cvxpy as cp
import torch
from jaxtyping import Float, Int
from torch import Tensor

from conelayers import Status, compile_program, make_engine
from conelayers.checks import whole
from conelayers.errors import ModelError, ShapeError
from conelayers.status import Statuses, usable
from research.baselines.hellinger_smooth import Data, Point, differentiable, interior_point


@dataclass(frozen=True, eq=False, repr=False)
class RobustPortfolio(Statuses):
    """What was found for a batch; NaN, without a gradient, where ``status`` is not ok.

    Attributes:
        weights: the portfolios, differentiable in scenarios, rewards and delta.
        value: the worst-case deviation less the reward, differentiable likewise.
        centre: the c at which the deviation is smallest.
        status: a ``dro.Status`` code an item.
    """

    weights: Float[Tensor, "batch asset"]
    value: Float[Tensor, "batch"]
    centre: Float[Tensor, "batch"]
    status: Int[Tensor, "batch"]


class HellingerPortfolio:
    """The program above for a number of assets and scenarios, compiled once.

    Args:
        assets: number of assets.
        scenarios: number of scenarios.
        engine: who solves cone programs, by name or as an object.
        route: "smooth" (the engine solves what is left unfinished) or "cone" (the engine solves everything).
    """

    def __init__(
        self, assets: int, scenarios: int, engine: Any = "auto", route: Literal["smooth", "cone"] = "smooth"
    ) -> None:
        if route not in ("smooth", "cone"):
            raise ModelError(f"route must be 'smooth' or 'cone', not {route!r}.")
        self.route = route
        n, T = whole("assets", assets), whole("scenarios", scenarios)
        self.assets, self.scenarios, self.engine = n, T, make_engine(engine)
        self.x = cp.Variable(n, nonneg=True, name="x")
        self.c, self.xi = cp.Variable(name="c"), cp.Variable(name="xi")
        self.lam = cp.Variable(nonneg=True, name="lambda")
        d, q = cp.Variable(T, name="d"), cp.Variable(T, name="q")
        epsilon, reward = cp.Parameter((T, n), name="scenarios"), cp.Parameter(n, name="reward")
        rho = cp.Parameter(nonneg=True, name="rho")
        room = self.lam - rho * d
        constraints = [
            cp.sum(self.x) == 1,
            cp.SOC(d + self.xi + 1, cp.vstack([2 * (epsilon @ self.x - self.c), d + self.xi - 1]), axis=0),
            cp.SOC(q + room, cp.vstack([2 * d, q - room]), axis=0),
        ]
        objective = self.xi + rho * self.lam + cp.sum(d) / T + rho * cp.sum(q) / T - reward @ self.x
        self.program = compile_program(cp.Problem(cp.Minimize(objective), constraints), [epsilon, reward, rho])

    def __call__(
        self,
        scenarios: Float[Tensor, "scenario asset"],
        reward: Float[Tensor, "batch asset"],
        delta: Float[Tensor, ""],
    ) -> RobustPortfolio:
        """Solve for a batch of rewards.

        Args:
            scenarios: ε, the same for all items.
            reward: risk appetite times expected returns.
            delta: size of the ball; positive.
        """
        if tuple(scenarios.shape) != (self.scenarios, self.assets) or tuple(reward.shape[1:]) != (self.assets,):
            raise ShapeError(
                f"HellingerPortfolio needs scenarios of shape {(self.scenarios, self.assets)} and rewards of shape "
                f"(batch, {self.assets}), not {tuple(scenarios.shape)} and {tuple(reward.shape)}."
            )
        # Returns are small: in units of their own deviation the cones are of size one.
        unit = scenarios.detach().double().square().mean().sqrt().clamp(min=1e-12)
        data = Data(scenarios.double() / unit, reward.double() / unit**2, delta.double().sqrt())
        point, status = self._solve(data)
        ok = usable(status)
        weights, value = differentiable(point, data)
        return RobustPortfolio(
            torch.where(ok[:, None], weights, torch.nan),
            torch.where(ok, value * unit**2, torch.nan),
            point.c * unit,
            status,
        )

    @torch.no_grad()
    def _solve(self, data: Data) -> tuple[Point, Tensor]:
        """Optimal points and their statuses."""
        status = torch.full((len(data.reward),), int(Status.OPTIMAL))
        if self.route == "cone":
            return self._cones(data)
        point, solved = interior_point(data)
        left = (~solved).nonzero()[:, 0]
        if left.numel():
            others, codes = self._cones(Data(data.scenarios, data.reward[left], data.rho))
            point, status = point.put(left, others), status.index_copy(0, left, codes.to(status))
        return point, status

    def _cones(self, data: Data) -> tuple[Point, Tensor]:
        """Points from the cone program; a harmless one where there is none."""
        batch = len(data.reward)
        shared = data.scenarios.reshape(1, -1).expand(batch, -1)
        theta = torch.cat([shared, data.reward, data.rho.reshape(1, 1).expand(batch, 1)], 1)
        found = self.engine.solve(self.program, theta)
        x, c, xi, lam = (found.variable(v) for v in (self.x, self.c, self.xi, self.lam))
        ok = found.ok
        return Point(
            torch.where(ok[:, None], x, torch.full_like(x, 1.0 / self.assets)),
            torch.where(ok, c, torch.zeros_like(c)),
            torch.where(ok, xi, torch.full_like(xi, 1e6)),
            torch.where(ok, lam, torch.ones_like(lam)),
        ), found.status
