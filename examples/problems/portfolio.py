"""Twenty assets, four of them sold in lots only, for returns that depend on five covariates.

python examples/problems/portfolio.py 1000 returns.csv         # draw 1,000 days
drolayers run examples/problems/portfolio.py returns.csv       # learn, compare, save
drolayers decide runs/portfolio contexts.csv                   # a file with columns "z1" to "z5"
"""

import sys

import cvxpy as cp
import numpy as np

import drolayers as dro

ASSETS, LOTS = 20, 4

covariates, outcomes = [f"z{k + 1}" for k in range(5)], [f"return_{k + 1}" for k in range(ASSETS)]

y = dro.Uncertain(ASSETS)
lots = cp.Variable(LOTS, boolean=True, name="lots")
free = cp.Variable(ASSETS - LOTS, nonneg=True, name="free")
holdings = cp.hstack([lots / ASSETS, free])

problem = dro.DecisionProblem(-(y @ holdings), [cp.sum(holdings) == 1], dro.MomentSet.grouped(y, 1))
learner = dro.DecisionFocusedLearner(
    problem,
    pretraining=dro.Stage(epochs=20, rate=1e-2, batch_size=100),
    training=dro.Stage(epochs=15, rate=1e-3, batch_size=100),
)

if __name__ == "__main__":
    rng = np.random.default_rng(0)
    z = rng.standard_normal((int(sys.argv[1]), 5)) / 5
    mean = 0.003 + z @ rng.standard_normal((5, ASSETS)) / 40
    returns = mean + 0.02 * rng.standard_normal(mean.shape)
    named = ",".join(covariates + outcomes)
    np.savetxt(sys.argv[2], np.hstack([z, returns]), delimiter=",", header=named, comments="")
