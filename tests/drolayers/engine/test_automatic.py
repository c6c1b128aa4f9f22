"""Which solver the default one hands a program to, and what it says about it."""

from __future__ import annotations

import pytest

import drolayers as dro
from conelayers import make_engine
from conelayers.engine.solvers.automatic import Automatic
from conelayers.engine.solvers.interior import Interior
from conelayers.errors import ModelError
from research.problems import Newsvendor, Portfolio


def test_the_paper_s_programs_are_ours() -> None:
    for problem in (Newsvendor("SOC-III").problem, Portfolio(50, 10, 1).problem, Portfolio(50, 10, 5).problem):
        assert isinstance(Automatic().choice(problem.program), Interior)


def test_a_layer_s_engine_says_what_it_chose() -> None:
    layer = dro.DROLayer(Newsvendor("SOC-III").problem)
    assert layer.engine.explain() == (
        "Solved by batched, since all cones (nonneg, soc) are those of our own method; "
        "differentiated exactly, on the active face."
    )
    layer.gradient = dro.Smoothed(1e-2)
    assert "on the central path at level 0.01" in layer.engine.explain()
    assert "moreau, as asked for" in dro.DROLayer(Newsvendor("SOC-I").problem, engine="moreau").engine.explain()
    with pytest.raises(ModelError, match="needs a program"):
        make_engine().explain()
