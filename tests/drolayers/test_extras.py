"""The layer needs the core packages only, and whatever needs more says its name."""

from __future__ import annotations

import subprocess
import sys

import pytest

import drolayers as dro

EXTRAS = [
    "lightning",
    "tensorboard",
    "sklearn",
    "safetensors",
    "tqdm",
    "matplotlib",
    "typer",
    "rich",
    "joblib",
    "pandas",
]
BARE = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}))\n"

LAYER = """
import cvxpy as cp
import torch

import drolayers as dro

y = dro.Uncertain(2, support=dro.support.Nonnegative())
x, lots = cp.Variable(2, nonneg=True), cp.Variable(2, boolean=True)
cost = cp.sum(cp.maximum(3 * (y - x - 2 * lots), x + 2 * lots - y)) + 0.5 * cp.sum(lots)
ambiguity = dro.MomentSet.grouped(y, 1)
problem = dro.DecisionProblem(cost, [], ambiguity)
layer = dro.DROLayer(problem, candidates=2)
z, demand = torch.randn(30, 1).double(), torch.rand(30, 2).double()
nominal = dro.nominal.KNN(k=5).fit(z, demand)
theta = torch.tensor([[6.0, 5.0, 1.0, 1.0]], dtype=torch.float64, requires_grad=True)
decision = layer(dro.Projection(ambiguity)(theta, nominal(z[:1])))
problem.loss(decision.best, demand[:1]).sum().backward()
assert decision.ok.all() and theta.grad.isfinite().all() and theta.grad.abs().sum() > 0
print("decided")
"""

CALLS = {
    "learning": "import drolayers as dro; dro.DecisionFocusedLearner",
    "baselines": "import drolayers as dro; dro.baselines",
    "forest": "import drolayers as dro, torch; dro.nominal.Forest().fit(torch.rand(9, 1), torch.rand(9, 1))",
    "plot": "from drolayers.plot import _panels; _panels(None, 1)",
    "cli": "import drolayers.cli",
    # When the layer is made, not at its first call.
    "scip": "import sys; sys.modules['pyscipopt'] = None; import conelayers.oracles as i; i.make_oracle('scip')",
}


def bare(code: str) -> subprocess.CompletedProcess[str]:
    """Run code where the extras cannot be imported."""
    return subprocess.run([sys.executable, "-c", BARE + code], capture_output=True, text=True, check=False, timeout=300)


def test_the_layer_works_without_extras() -> None:
    done = bare(LAYER)
    assert done.stdout == "decided\n", done.stderr


def test_what_is_listed_is_there() -> None:
    """For ``help(dro)`` and ``from drolayers import *``, which ask for every name."""
    listing = "import inspect, drolayers as dro; print(*[n for n, _ in inspect.getmembers(dro)], *dro.__all__)"
    done = bare(f"from drolayers import *\n{listing}")
    assert done.returncode == 0, done.stderr
    assert {"DROLayer", "nominal", "plot"} <= set(done.stdout.split())
    assert not {"Stage", "baselines", "metrics", "objectives"} & set(done.stdout.split())
    assert {"Stage", "baselines", "metrics", "objectives"} <= set(dir(dro))
    assert {"Stage", "choose"} <= set(dro.__all__)


@pytest.mark.parametrize("part", CALLS)
def test_what_needs_more_says_its_name(part: str) -> None:
    extra = {"baselines": "learning", "forest": "learning"}.get(part, part)
    done = bare(CALLS[part])
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("conelayers.errors.MissingExtraError")
    assert f"layers[{extra}]'" in last


def test_the_command_says_it_in_one_sentence() -> None:
    done = bare("from drolayers.__main__ import main; main()")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("drolayers: typer, rich are not installed: pip install 'drolayers[cli]'")
    assert len(done.stderr.splitlines()) == 1
