"""Four items, bought at retail in any amount or wholesale in lots, for demand that depends on one covariate.

python examples/problems/newsvendor.py 500 demand.csv          # draw 500 days
drolayers run examples/problems/newsvendor.py demand.csv       # learn, compare, save
drolayers decide runs/newsvendor contexts.csv                  # a file with a column "z"
"""

import sys

import cvxpy as cp
import numpy as np

import drolayers as dro

price, lot = np.array([0.25, 0.5, 0.75, 1.0]), np.array([10.0, 13.0, 16.0, 19.0])
short, hold = np.array([2.0, 4.0, 6.0, 8.0]), np.array([0.5, 1.0, 1.5, 2.0])

covariates, outcomes = ["z"], ["demand_1", "demand_2", "demand_3", "demand_4"]

y = dro.Uncertain(4, support=dro.support.Nonnegative())
retail = cp.Variable(4, nonneg=True, name="retail")
wholesale = cp.Variable(4, boolean=True, name="wholesale")
stock = retail + cp.multiply(lot, wholesale)
cost = price @ retail + (0.95 * price * lot) @ wholesale
cost += cp.sum(cp.maximum(cp.multiply(short, y - stock), cp.multiply(hold, stock - y)))

problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.Norm(1), dro.moments.SquaredNorm()]))

if __name__ == "__main__":
    rng = np.random.default_rng(0)
    z = rng.uniform(size=(int(sys.argv[1]), 1))
    gap = z - np.array([0.2, 0.4, 0.6, 0.8])
    demand = np.array([8.0, 11, 14, 17]) + 6 * gap**2 + rng.standard_normal(gap.shape) / (1 + 8 * abs(gap))
    named = ",".join(covariates + outcomes)
    np.savetxt(sys.argv[2], np.hstack([z, demand]), delimiter=",", header=named, comments="")
