"""Four items, bought at retail in any amount or wholesale in lots: learn how far to trust a forecast of demand."""

import argparse

import cvxpy as cp
import numpy as np
import torch

import drolayers as dro

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--points", type=int, default=100)
arguments = parser.parse_args()
torch.manual_seed(0)

price, lot = np.array([0.25, 0.5, 0.75, 1.0]), np.array([10.0, 13.0, 16.0, 19.0])
short, hold = np.array([2.0, 4.0, 6.0, 8.0]), np.array([0.5, 1.0, 1.5, 2.0])


def draw(count):
    """Context, and demand that depends on it."""
    z = torch.rand(count, 1)
    gap = z - torch.tensor([0.2, 0.4, 0.6, 0.8])
    return z, torch.tensor([8.0, 11, 14, 17]) + 6 * gap**2 + torch.randn(count, 4) / (1 + 8 * gap.abs())


y = dro.Uncertain(4, support=dro.support.Nonnegative())
retail, wholesale = cp.Variable(4, nonneg=True), cp.Variable(4, boolean=True)
stock = retail + cp.multiply(lot, wholesale)
cost = price @ retail + (0.95 * price * lot) @ wholesale
cost += cp.sum(cp.maximum(cp.multiply(short, y - stock), cp.multiply(hold, stock - y)))

ambiguity = dro.MomentSet(y, [dro.moments.Norm(1), dro.moments.SquaredNorm()])
problem = dro.DecisionProblem(cost, constraints=[], ambiguity=ambiguity)
layer = dro.DROLayer(problem, candidates=3, samples=4, temperature=10.0)

(z, demand), (z_test, demand_test) = draw(arguments.points), draw(100)
nominal = dro.nominal.KNN(k=10).fit(z, demand)
projection = dro.Projection(ambiguity, margin=0.01)
model = torch.nn.Sequential(torch.nn.Linear(1, 30), torch.nn.Tanh(), torch.nn.Linear(30, ambiguity.size))
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)

for epoch in range(arguments.epochs + 1):
    decision = layer.eval()(projection(model(z_test), nominal(z_test)))
    print(f"epoch {epoch}: cost {problem.loss(decision.best, demand_test).mean():.2f}", flush=True)
    layer.train().temperature = 10.0 * 0.8**epoch
    for rows in torch.randperm(len(z)).split(25):
        decision = layer(projection(model(z[rows]), nominal(z[rows])))
        loss, _ = decision.mean(lambda x, rows=rows: problem.loss(x, demand[rows]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
