"""A compiled program is written and read, also where CVXPY is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conelayers import ConeProgram, files, make_engine
from conelayers.program.program import FORMAT
from tests.drolayers.learning.small import shop
from tests.helpers import damage
from tests.helpers.programs import GENERAL, family, needs_moreau

WITHOUT_CVXPY = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cvxpy", "cvxpylayers"):
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Refuse())
import torch
from conelayers import ConeProgram, make_engine

program = ConeProgram.load(sys.argv[1])
theta = torch.load(sys.argv[2]).requires_grad_()
solution = make_engine(sys.argv[3]).solve(program, theta)
solution.primal.sum().backward()
torch.save({"x": solution.variable("X").detach(), "grad": theta.grad}, sys.argv[4])
try:
    import cvxpy
except ImportError:
    print("no cvxpy, " + ", ".join(str(s) for s in solution.statuses))
"""


def test_runs_without_cvxpy(tmp_path: Path) -> None:
    import cvxpy as cp

    from conelayers import compile_program

    X, C = cp.Variable((2, 3), nonneg=True, name="X"), cp.Parameter((2, 3))
    problem = cp.Problem(cp.Minimize(cp.sum(cp.multiply(C, X)) + cp.norm(cp.vec(X, order="C"))), [cp.sum(X) == 1])
    program = compile_program(problem)
    program.save(tmp_path / "program.safetensors")
    theta = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.save(theta, tmp_path / "theta.pt")
    for engine in GENERAL:
        paths = [str(tmp_path / name) for name in ("program.safetensors", "theta.pt")]
        run = subprocess.run(
            [sys.executable, "-c", WITHOUT_CVXPY, *paths, engine, str(tmp_path / "out.pt")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        assert run.stdout.strip() == "no cvxpy, OPTIMAL, OPTIMAL, OPTIMAL, OPTIMAL"
        found = torch.load(tmp_path / "out.pt")
        leaf = theta.clone().requires_grad_()
        expected = make_engine(engine).solve(program, leaf)
        expected.primal.sum().backward()
        torch.testing.assert_close(found["x"], expected.variable(X).detach())
        torch.testing.assert_close(found["grad"], leaf.grad)


def program(name: str) -> ConeProgram:
    return shop().problem.program if name == "shop" else family(name).program


@pytest.mark.parametrize(
    ("name", "engine"), [("shop", "auto"), pytest.param("qp_weights", "moreau", marks=needs_moreau)]
)
def test_damaged_programs_are_refused_before_they_are_built(name: str, engine: str, tmp_path: Path) -> None:
    """Whatever a header or a tensor says, a program comes of it that can be used, or one sentence."""
    file = tmp_path / "program"
    program(name).save(file)
    header, tensors = files.load(file, "compiled program", FORMAT)
    theta = torch.ones(1, program(name).feature_size, dtype=torch.float64)

    def use(loaded: ConeProgram) -> None:
        make_engine(engine).solve(loaded, theta.clone().requires_grad_()).primal.nan_to_num().sum().backward()

    assert not damage.refused(file, ConeProgram.load, use)
    changed = {told: (header, other) for told, other in damage.tensors(tensors)}
    for path in damage.places(header):
        if path[0] != "format" and path[-1] != "key":
            changed |= {f"{path}: {junk}": (damage.put(header, path, junk), tensors) for junk in damage.JUNK}
    refused = {}
    for told, (head, parts) in changed.items():
        files.save(file, head, parts)
        refused[told] = damage.refused(file, ConeProgram.load, use)
    for path in (("cones", "exp"), ("cones", "zero"), ("columns",), ("variables", 0, "offset")):
        assert all(refused[f"{path}: {junk}"] for junk in (-1, 10**12, 10**30, True, 1.5, "x", [3], None))
    for junk in (-1, [10**12], [10**30], [-1.0], ["x"]):
        assert refused[f"{('cones', 'soc')}: {junk}"]
        assert refused[f"{('parameters', 0, 'shape')}: {junk}"]
    for part in [part for part in tensors if tensors[part].numel()]:
        assert all(refused[f"{part}: {told}"] for told in ("left out", "a matrix", "one more", "the other type"))
    assert refused["A_indptr: backwards"]
    assert refused["A_indices: with 1000000000000"]
    assert not any(answer for told, answer in refused.items() if told.startswith("q_map.constant: with"))
