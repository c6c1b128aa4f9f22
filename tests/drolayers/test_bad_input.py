"""Wrong things that users type: each must end in one sentence of ours, never in someone else's traceback."""

from functools import cache

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse
import torch

import drolayers as dro
from conelayers.checks import number, numbers, whole

Y = dro.Uncertain(2)
X = cp.Variable(2, nonneg=True)


@cache
def problem() -> dro.DecisionProblem:
    return dro.DecisionProblem(-(Y @ X), [cp.sum(X) == 1], dro.MomentSet(Y, [dro.moments.SquaredNorm()]))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: dro.Uncertain(2.5),
        lambda: dro.Uncertain(True),
        lambda: dro.Wasserstein(Y, 0),
        lambda: dro.Learn(2.9, 2),
        lambda: dro.Learn(0, 2),
        lambda: dro.moments.SquaredNorm(index=[0.7]),
        lambda: dro.moments.Absolute(h=[1, 2]),
        lambda: dro.moments.Norm("a"),
        lambda: dro.moments.Linear(mu="x"),
        lambda: 2.0 * dro.moments.Norm(1, sigma=2.0),
        lambda: dro.moments.bounded(3, 1.0),
        lambda: dro.support.Box("a", 1),
        lambda: dro.support.Box([0, 0], [1, 1, 1]),
        lambda: dro.support.Polyhedron([[1, 2], [3]], [1, 2]),
        lambda: dro.support.Nonnegative() & 3,
        lambda: dro.DecisionProblem(-(Y @ X), None, dro.MomentSet(Y, [dro.moments.SquaredNorm()])),
        lambda: dro.DecisionProblem(-(Y @ X), [True], dro.MomentSet(Y, [dro.moments.SquaredNorm()])),
        lambda: dro.cvar(-(Y @ X), "a"),
        lambda: dro.DROLayer(problem(), gradient=None),
        lambda: dro.DROLayer(problem(), temperature="a"),
        lambda: dro.nominal.KNN(k=0),
        lambda: dro.nominal.KNN(k=10**30),
        lambda: dro.Uncertain(10**30),
    ],
)
def test_models_are_refused(wrong) -> None:
    with pytest.raises(dro.ModelError):
        wrong()


@pytest.mark.parametrize(
    "setting",
    [
        lambda: {"training": dro.Stage(epochs=-1)},
        lambda: {"training": dro.Stage(epochs=1.5)},
        lambda: {"training": dro.Stage(batch_size=0)},
        lambda: {"model": dro.Network(hidden=64)},
        lambda: {"model": dro.Network(hidden=(0,))},
        lambda: {"seed": None},
        lambda: {"nominal": dro.nominal.KNN},
        lambda: {"model": 3},
        lambda: {"trainer": dro.Trainer(devices=0)},
        lambda: {"trainer": None},
        lambda: {"training": dro.Stage(rate="a")},
        lambda: {"training": dro.Stage(clip=-1.0)},
        lambda: {"training": dro.Stage(patience=0)},
        lambda: {"training": dro.Stage(temperature="a")},
        lambda: {"training": dro.Stage(rate=None)},
        lambda: {"training": dro.Stage(decay=None)},
        lambda: {"training": dro.Stage(decay=lambda epoch: 2.0)},
        lambda: {"training": dro.Stage(smoothing=None)},
        lambda: {"training": 30},
        lambda: {"objective": "median"},
    ],
)
def test_learners_are_refused(setting) -> None:
    with pytest.raises(dro.ModelError):
        dro.DecisionFocusedLearner(problem(), **setting()).fit(np.zeros((4, 1)), np.ones((4, 2)))


@pytest.mark.parametrize(
    ("stage", "setting", "value"),
    [
        ("pretraining", "anchor", 1.0),
        ("pretraining", "temperature", 2.0),
        ("pretraining", "gradient", "exact"),
        ("pretraining", "smoothing", 0.1),
        ("pretraining", "violations", 0.1),
        ("pretraining", "coverage", 0.9),
        ("training", "locations", "outcomes"),
    ],
)
def test_settings_of_the_other_training_are_refused(stage: str, setting: str, value: object) -> None:
    """They were ignored; one that is as it is by default was not given."""
    other = {"pretraining": "training", "training": "pretraining"}[stage]
    learner = dro.DecisionFocusedLearner(problem(), **{stage: dro.Stage(1, **{setting: value})})
    with pytest.raises(dro.ModelError, match=rf"{setting}={value!r}.* give it to {other}=dro.Stage\(\.\.\.\)"):
        learner.fit(np.zeros((4, 1)), np.ones((4, 2)))


def test_a_directory_that_cannot_be_made(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    learner = dro.DecisionFocusedLearner(problem(), trainer=dro.Trainer(tmp_path / "file" / "run"))
    with pytest.raises(dro.ModelError, match="cannot be written to"):
        learner.fit(np.arange(4.0)[:, None], np.ones((4, 2)))


def test_numpy_counts_are_counts() -> None:
    assert dro.Uncertain(np.int64(3)).dim == 3
    assert dro.Wasserstein(Y, np.int64(5)).atoms == 5


def test_checks_convert() -> None:
    assert whole("n", np.int32(4)) == 4
    assert number("x", np.array(1.5)) == 1.5
    np.testing.assert_array_equal(numbers("v", [1, 2]), [1.0, 2.0])


def test_projection_wants_a_pair_of_numbers() -> None:
    projection, theta = dro.Projection(problem().ambiguity), torch.zeros(1, 3)
    arrays = np.zeros((1, 2, 2)), np.full((1, 2), 0.5)
    torch.testing.assert_close(projection(theta, arrays), projection(theta, tuple(map(torch.as_tensor, arrays))))
    with pytest.raises(dro.ShapeError, match="pair of tensors"):
        projection(theta, arrays[0])
    with pytest.raises(dro.ShapeError, match="nominal weights must be numbers"):
        projection(theta, (arrays[0], [None, 0.5]))


def test_weights_off_by_single_precision_are_probabilities() -> None:
    ball = dro.Wasserstein(Y, 3)
    weights = torch.tensor([[0.5, 0.3, 0.20005]])
    _, found = ball.around((torch.zeros(1, 3, 2), weights), torch.ones(1, 1))
    assert float(found.sum()) == pytest.approx(1.0, abs=1e-12)


NAMED = cp.Parameter(2, name="stock")
KNOWING = dro.DecisionProblem(-(Y @ X), [X <= NAMED], dro.MomentSet(Y, [dro.moments.SquaredNorm()]))
BOX = dro.Outcomes(Y)
THETA, POINT = torch.ones(3, 3, dtype=torch.float64), torch.ones(3, 2, dtype=torch.float64)
ATOMS, WEIGHTS = torch.ones(3, 2, 2, dtype=torch.float64), torch.full((3, 2), 0.5, dtype=torch.float64)
FITTED = dro.nominal.KNN(k=2).fit(POINT, POINT)
LEARNT = dro.DecisionFocusedLearner(
    problem(), nominal=dro.nominal.KNN(k=2), pretraining=None, training=None, trainer=dro.Trainer(progress=False)
)
ENTRIES = {
    "theta": (THETA, lambda v: dro.DROLayer(problem())(v)),
    "a part of theta": (POINT, lambda v: problem().pack({"0.mu": v, "0.sigma": torch.ones(3)})),
    "theta of a projection": (THETA, lambda v: dro.Projection(problem().ambiguity)(v, (ATOMS, WEIGHTS))),
    "atoms": (ATOMS, lambda v: dro.Projection(problem().ambiguity)(THETA, (v, WEIGHTS))),
    "weights": (WEIGHTS, lambda v: dro.Projection(problem().ambiguity)(THETA, (ATOMS, v))),
    "theta of a score": (THETA, lambda v: problem().ambiguity.scores(v, POINT)),
    "outcomes of a score": (POINT, lambda v: problem().ambiguity.scores(THETA, v)),
    "outcomes of a box": (POINT, lambda v: BOX.scores(torch.ones(3, 4).double(), v)),
    "outcomes of typical values": (POINT, lambda v: problem().ambiguity.typical(v)),
    "theta of emptiness": (THETA, lambda v: problem().ambiguity.emptiness(v, None)),
    "a factor": (POINT[:, 0], lambda v: problem().ambiguity.scaled(THETA, v)),
    "context": (POINT, FITTED),
    "decision": (POINT, lambda v: problem().loss({X: v}, POINT)),
    "decision in its worst case": (POINT, lambda v: problem().worst_case_cost({X: v}, THETA)),
    "outcomes": (POINT, lambda v: problem().loss({X: POINT}, v)),
    "known data": (POINT, lambda v: dro.DROLayer(KNOWING)(THETA, known={"stock": v})),
    "contexts": (POINT, lambda v: LEARNT.fit(POINT, POINT).predict(v)),
}
ODD = {
    "sparse": lambda v: v.to_sparse(),
    "sparse by rows": lambda v: v.reshape(len(v), -1).to_sparse_csr(),
    "sparse of scipy": lambda v: scipy.sparse.csr_array(v.reshape(len(v), -1).numpy()),
    "complex": lambda v: v + 1j,
    "complex array": lambda v: v.numpy() + 1j,
    "of no numbers": lambda v: v.to("meta"),
    "text": lambda v: v.numpy().astype(str),
    "text in objects": lambda v: v.numpy().astype(str).astype(object),
    "text in lists": lambda v: v.numpy().astype(str).tolist(),
    "text in a frame": lambda v: frames()(v.reshape(len(v), -1).numpy().astype(str)),
    "ragged": lambda v: [[1.0], [1.0, 2.0]],
    "nothing": lambda v: None,
    "something": lambda v: object(),
}


def frames():
    return pytest.importorskip("pandas").DataFrame


@pytest.mark.filterwarnings("ignore:.*CSR tensor support is in beta.*")
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("entry", ENTRIES)
def test_numbers_that_are_none_are_refused(entry: str, odd: str) -> None:
    """Complex atoms and outcomes once lost their imaginary parts."""
    value, use = ENTRIES[entry]
    use(value)
    with pytest.raises(dro.LayerError) as caught:
        use(ODD[odd](value))
    assert "\n" not in str(caught.value)


def test_a_factor_for_every_item_or_for_all() -> None:
    for ambiguity, size in ((problem().ambiguity, 3), (BOX, 4)):
        theta = torch.ones(3, size, dtype=torch.float64)
        every = ambiguity.scaled(theta, torch.full((3,), 2.0))
        for factor in (2.0, torch.tensor([2.0]), [2.0, 2.0, 2.0]):
            torch.testing.assert_close(ambiguity.scaled(theta, factor), every)
        torch.testing.assert_close(ambiguity.scaled(theta[:1], torch.full((3,), 2.0)), every)
        for factor in (torch.ones(2), torch.ones(3, 1), torch.ones(0)):
            with pytest.raises(dro.ShapeError, match=r"one an item \(3,\)"):
                ambiguity.scaled(theta, factor)


def test_arrays_are_taken_for_tensors() -> None:
    for kind in ("float64", "float32", ">f8", "int64", "uint16", "bool", "object"):
        one = np.ones((3, 2)).astype(kind)
        assert problem().loss({X: one}, one).tolist() == [-2.0] * 3
    assert problem().loss({X: [[1, 1]]}, [[1.0, 2.0]]).tolist() == [-3.0]
