"""Long work: checkpoints, interruptions, several processes, logs, saved models."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import drolayers as dro
from drolayers.learning import SetModel, storage
from drolayers.learning.calibration import Calibration
from drolayers.learning.training import alone
from research.problems import Portfolio, PortfolioData
from tests.drolayers.learning.small import learner, sales, shop, weights

ROOT = Path(__file__).parents[3]


def run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python code in a process of its own; DDP wants it in a file."""
    return subprocess.run(
        [sys.executable, script, *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, [ROOT, *ROOT.glob("packages/*/src")])),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


class Mortal(nn.Module):
    """A model that kills its process at a given call."""

    dies_at: int | None = None

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.inner = nn.Linear(inputs, outputs)
        nn.init.normal_(self.inner.weight, std=0.01, generator=generator)
        nn.init.constant_(self.inner.bias, 0.01)
        self.calls = 0

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(z)


class Watched(Mortal):
    """A model that writes down the contexts that it is trained on."""

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        if self.training and torch.is_grad_enabled():
            SEEN.append(z[:, 0].tolist())
        return super().forward(z)


SEEN: list[list[float]] = []


def test_every_epoch_has_batches_of_its_own() -> None:
    """All rows once an epoch, in an order that depends on the seed and the epoch."""
    Z, Y = sales(30)
    kept = {}
    for seed in (0, 0, 1):
        SEEN.clear()
        problem = shop(lots=False).problem
        learner(problem, model=Watched(2, problem.size), pretraining=None, training__epochs=3, seed=seed).fit(
            Z, Y, validation=sales(4, 1)
        )
        batches = [rows for rows in SEEN if len(rows) == 10]
        epochs = [list(chain.from_iterable(batches[k : k + 3])) for k in range(len(batches) - 9, len(batches), 3)]
        assert len(epochs) == 3
        assert all(sorted(rows) == sorted(Z[:, 0].tolist()) for rows in epochs)
        assert len({tuple(rows) for rows in epochs}) == 3
        if seed in kept:
            assert kept[seed] == epochs
        kept[seed] = epochs
    assert kept[0] != kept[1]


def lots(directory: Path, **settings: Any) -> tuple[dro.DecisionFocusedLearner, PortfolioData]:
    """A portfolio with too many lots to enumerate, so that points are drawn at random."""
    data = PortfolioData.generate(8, 40)
    portfolio = Portfolio(8, binaries=6)
    settings = {
        "model": Mortal(5, 16),
        "trainer__directory": directory,
        "training__epochs": 3,
        **settings,
    }
    return learner(portfolio.problem, **settings), data


DYING = """
import sys
from pathlib import Path
from tests.drolayers.learning.test_runs import Mortal, lots
Mortal.dies_at = int(sys.argv[2])
model, data = lots(Path(sys.argv[1]), model=Mortal(5, 16))
model.fit(data.Z, data.Y)
"""


# Calls of the model: one to look at its shape, five an epoch (four steps, one validation), two epochs of
# pre-training first, and one for the unit of the cost. 9 dies in pre-training, 20 in the second decision-focused epoch.
@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
@pytest.mark.parametrize("dies_at", [9, 20])
def test_a_killed_run_resumes_and_ends_where_it_would_have(tmp_path: Path, dies_at: int) -> None:
    script = tmp_path / "dying.py"
    script.write_text(DYING)
    killed = run_script(str(script), str(tmp_path / "run"), str(dies_at))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    stage = "prediction" if dies_at == 9 else "decision"
    assert (tmp_path / "run" / stage / "last.ckpt").exists()
    assert not (tmp_path / "run" / stage / "done.json").exists()

    resumed, data = lots(tmp_path / "run", trainer__resume=True)
    resumed.fit(data.Z, data.Y)
    whole, _ = lots(tmp_path / "whole")
    whole.fit(data.Z, data.Y)
    np.testing.assert_array_equal(weights(resumed), weights(whole))
    for name, rows in whole.history_.items():
        found = resumed.history_[name]
        losses = [[row[f"val_{name}_loss"] for row in history] for history in (rows, found)]
        assert losses[0] == losses[1]


def test_a_finished_run_is_not_run_again_and_another_is_refused(tmp_path: Path) -> None:
    Z, Y = sales()
    problem = shop(False).problem
    first = learner(problem, trainer__directory=tmp_path).fit(Z, Y)
    again = learner(problem, trainer__directory=tmp_path, trainer__resume=True).fit(Z, Y)
    np.testing.assert_array_equal(weights(first), weights(again))
    assert first.history_ == again.history_
    with pytest.raises(dro.ModelError, match="other data"):
        learner(problem, trainer__directory=tmp_path, trainer__resume=True).fit(Z, Y + 1.0)
    with pytest.raises(dro.ModelError, match="other settings"):
        learner(problem, trainer__directory=tmp_path, trainer__resume=True, training__rate=0.5).fit(Z, Y)
    only = learner(problem, trainer__directory=tmp_path / "two", training=None).fit(Z, Y)
    then = learner(problem, trainer__directory=tmp_path / "two", trainer__resume=True).fit(Z, Y)
    assert then.history_["prediction"] == only.history_["prediction"]
    np.testing.assert_array_equal(weights(then), weights(first))
    fresh = learner(problem, trainer__directory=tmp_path, training__rate=1e-2).fit(Z, Y)
    assert not np.array_equal(weights(fresh), weights(first))


@dataclass
class Weighted:
    """An objective with a number."""

    weight: float

    def __call__(self, problem: Any, decision: Any, y: Any) -> Any:
        return self.weight * decision.expected(lambda x: problem.loss(x, y))


class Nearest(dro.nominal.KNN):
    """A nominal distribution of one's own."""


def scaled(weight: float, epoch: int) -> float:
    """A rate."""
    return weight / (1 + epoch)


@dataclass(slots=True)
class Slotted:
    """An objective without a dictionary."""

    weight: float

    def __call__(self, problem: Any, decision: Any, y: Any) -> Any:
        return self.weight * decision.value


def made(weight: float) -> Any:
    """An object whose class alone differs, which holds a module, a logger and an array of objects."""

    class Made:
        def __init__(self) -> None:
            self.package, self.log, self.names = np, logging.getLogger("made"), np.array(["a", None], dtype=object)

        def __call__(self, problem: Any, decision: Any, y: Any) -> Any:
            self.log.debug("asked")
            return weight * decision.value

    return Made()


class Module(nn.Module):
    """An objective with a buffer."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.register_buffer("weight", torch.tensor(weight, dtype=torch.bfloat16))

    def forward(self, problem: Any, decision: Any, y: Any) -> Any:
        return float(self.weight) * decision.value


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("training__rate", lambda: lambda epoch: 1e-2, lambda: lambda epoch: 1e-5),
        ("training__rate", lambda: partial(scaled, 1e-2), lambda: partial(scaled, 1e-5)),
        ("objective", lambda: Weighted(1.0), lambda: Weighted(2.0)),
        ("objective", lambda: lambda p, d, y: d.value, lambda: lambda p, d, y: 2.0 * d.value),
        ("nominal", lambda: Nearest(k=5), lambda: Nearest(k=9)),
        ("pretraining__rate", lambda: lambda epoch: 1e-2, lambda: lambda epoch: 1e-5),
        ("objective", lambda: made(1.0), lambda: made(2.0)),
        ("objective", lambda: Slotted(1.0), lambda: Slotted(2.0)),
        ("objective", lambda: Module(1.0), lambda: Module(2.0)),
    ],
)
def test_parts_of_ones_own_are_told_by_what_they_are_not_by_their_names(
    tmp_path: Path, name: str, one: Callable[[], Any], other: Callable[[], Any]
) -> None:
    problem, (Z, Y) = shop(False).problem, sales()
    first = learner(problem, trainer__directory=tmp_path, **{name: one()}).fit(Z, Y)
    again = learner(problem, trainer__directory=tmp_path, trainer__resume=True, **{name: one()}).fit(Z, Y)
    np.testing.assert_array_equal(weights(first), weights(again))
    with pytest.raises(dro.ModelError, match="other settings"):
        learner(problem, trainer__directory=tmp_path, trainer__resume=True, **{name: other()}).fit(Z, Y)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
def test_a_process_that_is_told_to_end_ends_with_the_code_of_that(tmp_path: Path) -> None:
    def ends(problem: Any, decision: Any, y: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return decision.value

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        learner(shop(False).problem, objective=ends, trainer__directory=tmp_path).fit(*sales())
    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("lots", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"trainer__validation_share": 0.0},
        {"training__epochs": 9, "training__rate": 0.3, "training__patience": 2, "training__clip": None},
        {"pretraining__locations": "outcomes", "trainer__budget": 1.0, "training__rate": "auto"},
    ],
    ids=["plain", "no validation", "patience", "compared"],
)
def test_a_training_without_a_folder_is_lightnings(tmp_path: Path, lots: bool, settings: dict[str, Any]) -> None:
    # Our own loop, and Lightning's: same steps, same epochs, same figures, same best epoch.
    made, (Z, Y) = shop(lots), sales(30)
    one = learner(made.problem, **settings).fit(Z, Y)
    two = learner(made.problem, trainer__directory=tmp_path, **settings).fit(Z, Y)
    np.testing.assert_array_equal(weights(one), weights(two))
    assert one.report_ == two.report_
    for name, rows in two.history_.items():
        assert len(rows) == len(one.history_[name])
        for mine, theirs in zip(one.history_[name], rows, strict=True):
            assert set(mine) == set(theirs)
            for figure in set(mine) - {key for key in mine if key.startswith("seconds/")}:
                np.testing.assert_allclose(mine[figure], theirs[figure], rtol=1e-12, atol=0.0)


def test_violations_are_told_alike_without_a_folder(tmp_path: Path) -> None:
    y, x = dro.Uncertain(2), cp.Variable(2)
    ambiguity = dro.MomentSet(y, [dro.moments.SquaredNorm()])
    problem = dro.DecisionProblem(cp.sum(x), [dro.chance(y <= x, 0.8)], ambiguity)
    told = [
        learner(problem, trainer__directory=where, training__violations=0.1).fit(*sales(30))
        for where in (None, tmp_path)
    ]
    np.testing.assert_array_equal(weights(told[0]), weights(told[1]))
    one, two = ([row["violations/0"] for row in model.history_["decision"]] for model in told)
    np.testing.assert_allclose(one, two, rtol=1e-12)


def test_another_problem_takes_the_weights_of_a_file_and_none_of_its_promises(tmp_path: Path) -> None:
    stand, path = shop(False), tmp_path / "saved"
    model = learner(stand.problem, projection=None, training=None).fit(*sales(40))
    promised = model.calibrate(*sales(50, seed=1), disappointment=0.2)
    model.save(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dro.DecisionFocusedLearner.load(path, shop(False).problem, projection=None).calibration_ == promised
    y, x = stand.problem.ambiguity.y, cp.Variable(2, nonneg=True)
    dearer = dro.DecisionProblem(cp.sum(cp.maximum(40 * (y - x), x - y)), [], stand.problem.ambiguity)
    with pytest.warns(UserWarning, match="another cost, other constraints or another set"):
        loaded = dro.DecisionFocusedLearner.load(path, dearer, projection=None)
    assert loaded.calibration_ == Calibration(promised.scale, "choice", None, 50)
    assert loaded.pipeline_.scale == promised.scale
    loaded.save(path)
    assert dro.DecisionFocusedLearner.load(path, dearer, projection=None).pipeline_.scale == promised.scale


def test_logs_hold_losses_sample_size_masked_items_and_stages(tmp_path: Path) -> None:
    model, data = lots(tmp_path)
    model.fit(data.Z, data.Y)
    found: dict[str, EventAccumulator] = {}
    for stage in ("prediction", "decision"):
        found[stage] = EventAccumulator(str(tmp_path / stage / "logs"))
        found[stage].Reload()
    assert {"prediction_loss", "val_prediction_loss"} <= set(found["prediction"].Tags()["scalars"])
    expected = {
        "decision_loss",
        "val_decision_loss",
        "effective_sample_size",
        "masked_share",
        "val_masked_share",
        "seconds/learning",
        "seconds/projection",
        "seconds/integer",
        "seconds/layer",
        "seconds/backward",
    }
    assert expected <= set(found["decision"].Tags()["scalars"])
    for name in expected:
        values = [event.value for event in found["decision"].Scalars(name)]
        assert len(values) == 3
        assert np.isfinite(values).all()
    assert all(event.value >= 1.0 for event in found["decision"].Scalars("effective_sample_size"))
    assert all(event.value > 0.0 for event in found["decision"].Scalars("seconds/integer"))


PARALLEL = """
import os, sys
from tests.drolayers.learning.small import learner, sales, shop
Z, Y = sales(21)
model = learner(shop().problem, trainer__devices=2, trainer__validation_share=0.0).fit(Z, Y)
if int(os.environ["LOCAL_RANK"]) == 0:
    model.save(sys.argv[1])
"""


def test_two_processes_learn_what_one_does(tmp_path: Path) -> None:
    # 21 points in batches of ten: shares of five, and a last batch that leaves one process without any.
    script, file = tmp_path / "parallel.py", tmp_path / "model.safetensors"
    script.write_text(PARALLEL)
    ended = run_script(str(script), str(file))
    assert ended.returncode == 0, ended.stderr
    made = shop()
    two = dro.DecisionFocusedLearner.load(file, made.problem)
    Z, Y = sales(21)
    one = learner(made.problem, trainer__validation_share=0.0).fit(Z, Y)
    np.testing.assert_allclose(weights(two), weights(one), rtol=0, atol=1e-6)
    assert not np.allclose(
        weights(one),
        weights(learner(made.problem, trainer__validation_share=0.0, training__epochs=0).fit(Z, Y)),
        atol=1e-6,
    )


LOADING = """
import json, sys
import drolayers as dro
from tests.drolayers.learning.small import sales, shop
made = shop()
model = dro.DecisionFocusedLearner.load(sys.argv[1], made.problem)
decision = model.decide(sales(6, seed=9)[0])
print(json.dumps([decision[made.retail].tolist(), decision[made.lots].tolist(), model.nominal is None]))
"""


def test_saved_here_loaded_elsewhere(tmp_path: Path) -> None:
    made = shop()
    model = learner(made.problem).fit(*sales())
    model.save(tmp_path / "model.safetensors")
    script = tmp_path / "loading.py"
    script.write_text(LOADING)
    ended = run_script(str(script), str(tmp_path / "model.safetensors"))
    assert ended.returncode == 0, ended.stderr
    retail, boxes, _ = json.loads(ended.stdout.splitlines()[-1])
    decision = model.decide(sales(6, seed=9)[0])
    np.testing.assert_allclose(decision[made.retail], retail, atol=1e-9)
    np.testing.assert_array_equal(decision[made.lots], boxes)


@pytest.mark.parametrize(
    "nominal", [dro.nominal.KNN(k=3), dro.nominal.Kernel("epanechnikov", 0.7), dro.nominal.Forest(trees=3, min_leaf=2)]
)
def test_saved_with_any_nominal_distribution(tmp_path: Path, nominal) -> None:
    Z, Y = sales()
    problem = shop(False).problem
    model = learner(problem, nominal=nominal, training__epochs=0).fit(Z, Y)
    model.save(tmp_path / "model")
    loaded = dro.DecisionFocusedLearner.load(tmp_path / "model", problem)
    assert type(loaded.pipeline_.nominal) is type(nominal)
    assert loaded.loss(Z, Y) == model.loss(Z, Y)


def test_saved_with_a_model_of_ones_own(tmp_path: Path) -> None:
    Z, Y = sales()
    problem = shop(False).problem
    model = learner(problem, model=nn.Linear(2, 3), training__epochs=0).fit(Z, Y)
    model.save(tmp_path / "model", note={"by": "me"})
    assert storage.read_header(tmp_path / "model")["note"] == {"by": "me"}
    with pytest.raises(dro.ModelError, match="pass one as model="):
        dro.DecisionFocusedLearner.load(tmp_path / "model", problem)
    loaded = dro.DecisionFocusedLearner.load(tmp_path / "model", problem, model=nn.Linear(2, 3))
    assert loaded.loss(Z, Y) == model.loss(Z, Y)
    with pytest.raises(dro.ModelError, match="does not fit"):
        dro.DecisionFocusedLearner.load(tmp_path / "model", problem, model=nn.Linear(2, 4))


def test_files_that_are_not_saved_learners(tmp_path: Path) -> None:
    problem = shop(False).problem
    load = dro.DecisionFocusedLearner.load
    with pytest.raises(dro.ModelError, match="cannot be read"):
        load(tmp_path / "nothing", problem)
    (tmp_path / "text").write_text("not a model")
    with pytest.raises(dro.ModelError, match="cannot be read"):
        load(tmp_path / "text", problem)
    torch.save({"a": 1}, tmp_path / "pickle")
    with pytest.raises(dro.ModelError, match="cannot be read"):
        load(tmp_path / "pickle", problem)
    save_file({"a": torch.zeros(1)}, str(tmp_path / "other"))
    with pytest.raises(dro.ModelError, match="not a saved learner"):
        load(tmp_path / "other", problem)
    learner(problem, training__epochs=0).fit(*sales()).save(tmp_path / "model")
    with pytest.raises(dro.ModelError, match="saved for a set with parameters"):
        load(tmp_path / "model", shop(False, "linear").problem)
    with pytest.raises(dro.ModelError, match="cannot be written"):
        learner(problem, training__epochs=0).fit(*sales()).save(tmp_path / "no" / "folder")


def test_the_run_of_another_problem_is_refused(tmp_path: Path) -> None:
    Z, Y = sales()
    learner(shop(False).problem, trainer__directory=tmp_path).fit(Z, Y)
    again = {"trainer__directory": tmp_path, "trainer__resume": True}
    learner(shop(False).problem, **again).fit(Z, Y)  # built a second time, it is the same problem
    y, x = dro.Uncertain(2, support=dro.support.Nonnegative()), cp.Variable(2, nonneg=True)
    cost = cp.sum(x) + cp.sum(cp.maximum(1.1 * (y - x), x - y))
    other = dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    with pytest.raises(dro.ModelError, match="other settings"):
        learner(other, **again).fit(Z, Y)
    with pytest.raises(dro.ModelError, match="other settings"):
        learner(shop(False).problem, model=nn.Linear(2, 3), **again).fit(Z, Y)


def test_files_of_others_are_left_alone_and_trainings_keep_apart(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "best.ckpt").write_text("mine")
    Z, Y = sales()
    learner(shop(False).problem, trainer__directory=tmp_path).fit(Z, Y)
    assert (tmp_path / "other" / "best.ckpt").read_text() == "mine"
    (tmp_path / "lock").write_text(str(os.getppid()))
    with pytest.raises(dro.ModelError, match="Another training runs"):
        learner(shop(False).problem, trainer__directory=tmp_path).fit(Z, Y)
    (tmp_path / "lock").write_text("999999999")
    learner(shop(False).problem, trainer__directory=tmp_path).fit(Z, Y)
    assert not (tmp_path / "lock").exists()


@pytest.mark.parametrize("told", ["ours", "9" * 40, "-1", "0", "", "x"])
def test_the_lock_of_a_training_that_was_killed_keeps_nobody_out(tmp_path: Path, told: str) -> None:
    """Also where its number is ours, as in a container that is started anew."""
    (tmp_path / "lock").write_text(str(os.getpid()) if told == "ours" else told)
    with alone(tmp_path):
        assert (tmp_path / "lock").exists()
        with pytest.raises(dro.ModelError, match="Another training runs"), alone(tmp_path):
            pass
        told = (tmp_path / "lock").read_text()
    assert not (tmp_path / "lock").exists()
    assert told.split()[0] == str(os.getpid())


@pytest.mark.skipif(sys.platform != "linux", reason="processes tell when they began")
def test_a_number_that_another_process_has_by_now(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text(f"{os.getppid()} 17")
    with alone(tmp_path):
        pass
    began = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19]
    lock.write_text(f"{os.getppid()} {began}")
    with pytest.raises(dro.ModelError, match=r"delete .*lock where that process is something else"), alone(tmp_path):
        pass


def test_schedules_and_parts_come_back(tmp_path: Path) -> None:
    Z, Y = sales()
    problem = shop(False).problem
    stage = dro.Stage(1, dro.Annealed(0.05), temperature=dro.RelativeTemperature(0.3))
    projection = dro.Projection(problem.ambiguity, margin=5.0)
    learner(problem, training=stage, projection=projection).fit(Z, Y).save(tmp_path / "model")
    again = dro.DecisionFocusedLearner.load(tmp_path / "model", problem, projection=projection)
    assert again.training == stage
    with pytest.raises(dro.ModelError, match="another projection"):
        dro.DecisionFocusedLearner.load(tmp_path / "model", problem, projection=dro.Projection(problem.ambiguity))

    class More(SetModel):
        def forward(self, z):
            return super().forward(z) + 1.0

    own = More(problem.ambiguity, 2, (4,))
    learner(problem, model=own, training=None).fit(Z, Y).save(tmp_path / "own")
    with pytest.raises(dro.ModelError, match="model of your own"):
        dro.DecisionFocusedLearner.load(tmp_path / "own", problem)
