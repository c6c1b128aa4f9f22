"""A compiled program is written and read, also where CVXPY is not installed."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from conelayers import ConeProgram, compile_program, files, make_engine
from conelayers.errors import ModelError
from conelayers.program.program import FORMAT, AffineMap
from tests.helpers.programs import BUILDERS, family


@pytest.mark.parametrize("name", list(BUILDERS))
def test_round_trip(name: str, tmp_path: Path) -> None:
    member = family(name)
    member.program.save(tmp_path / "program.safetensors")
    loaded = ConeProgram.load(tmp_path / "program.safetensors")
    for f in fields(ConeProgram):
        before, after = getattr(member.program, f.name), getattr(loaded, f.name)
        if isinstance(before, torch.Tensor):
            assert torch.equal(before, after)
        elif isinstance(before, AffineMap):
            assert all(torch.equal(getattr(before, g.name), getattr(after, g.name)) for g in fields(AffineMap))
        elif f.name == "integer_bounds":
            assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))
        elif f.name in ("variables", "parameters"):
            assert [replace(slot, key=-1) for slot in before] == list(after)  # another process counts otherwise
        else:
            assert before == after
    theta = member.theta(3)
    expected, found = (make_engine().solve(p, theta) for p in (member.program, loaded))
    assert torch.equal(expected.primal, found.primal)


def test_wrong_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"missing\.safetensors cannot be read"):
        ConeProgram.load(tmp_path / "missing.safetensors")
    (tmp_path / "text.safetensors").write_text("not a program")
    with pytest.raises(ModelError, match=r"text\.safetensors cannot be read"):
        ConeProgram.load(tmp_path / "text.safetensors")
    save_file({"x": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ModelError, match=r"other\.safetensors is not a compiled program"):
        ConeProgram.load(tmp_path / "other.safetensors")


def test_quadratic_forms_that_are_symmetric_but_for_rounding_can_be_loaded(tmp_path: Path) -> None:
    """CVXPY takes them, too; a matrix that is not symmetric is refused."""
    rng = np.random.default_rng(0)
    x, scale = cp.Variable(5), cp.Parameter(5)
    S = np.linalg.inv(np.cov(rng.normal(size=(5, 40))))
    D = np.diag(rng.uniform(size=5))
    sparse = D @ np.corrcoef(rng.normal(size=(5, 40))) @ D
    sparse[0, 1], sparse[1, 0] = 0.0, 1e-17
    for matrix in (S, sparse):
        assert (matrix != matrix.T).any()
        problem = cp.Problem(cp.Minimize(cp.quad_form(x, matrix, assume_PSD=True) + scale @ x))
        compiled = compile_program(problem, [scale])
        compiled.save(tmp_path / "program")
        assert ConeProgram.load(tmp_path / "program").fingerprint == compiled.fingerprint
        header, tensors = files.load(tmp_path / "program", "compiled program", FORMAT)
        tensors["P_map.constant"][1] += 1.0
        files.save(tmp_path / "program", header, tensors)
        with pytest.raises(ModelError, match="symmetric"):
            ConeProgram.load(tmp_path / "program")
