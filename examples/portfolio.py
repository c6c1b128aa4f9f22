"""Twenty assets, four of them sold in lots only: learn a forecast of returns and how far to trust it."""

import argparse

import cvxpy as cp
import torch

import drolayers as dro

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--points", type=int, default=200)
arguments = parser.parse_args()
torch.manual_seed(0)

ASSETS, LOTS = 20, 4
slope, bend = 0.3 * torch.randn(3, ASSETS), 0.3 * torch.randn(9, ASSETS)


def draw(count):
    """Context, and returns of a few per cent that depend on it."""
    z = torch.randn(count, 3)
    products = (z[:, :, None] * z[:, None, :]).flatten(1)
    return z, 0.02 * (z @ slope + 0.5 * products @ bend + torch.randn(count, ASSETS))


y = dro.Uncertain(ASSETS)
lots, free = cp.Variable(LOTS, boolean=True), cp.Variable(ASSETS - LOTS, nonneg=True)
weights = cp.hstack([lots / ASSETS, free])

ambiguity = dro.MomentSet.grouped(y, size=5)
problem = dro.DecisionProblem(-y @ weights, constraints=[cp.sum(weights) == 1], ambiguity=ambiguity)
# Weights that are zero do not move with theta, so that exact gradients say little of them.
layer = dro.DROLayer(problem, candidates=3, samples=4, gradient="smoothed")

(z, returns), (z_test, returns_test) = draw(arguments.points), draw(100)
nominal = dro.nominal.KNN(k=20).fit(z, returns)
projection = dro.Projection(ambiguity, margin=0.01, method="clip")
model = torch.nn.Sequential(torch.nn.Linear(3, 40), torch.nn.Tanh(), torch.nn.Linear(40, ambiguity.size))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def decide(z):
    return layer(projection(0.02 * model(z), nominal(z)))


for epoch in range(arguments.epochs + 1):
    layer.eval()
    decision = decide(z_test)
    loss = problem.loss(decision.best, returns_test).mean()
    print(f"epoch {epoch}: loss (minus the return) {100 * loss:.2f} %", flush=True)
    layer.train()
    for rows in torch.randperm(len(z)).split(25):
        loss, _ = decide(z[rows]).mean(lambda x, rows=rows: problem.loss(x, returns[rows]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
