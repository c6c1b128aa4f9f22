"""Nominal distributions: a contract for all, and the formula of each."""

from __future__ import annotations

import io
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import drolayers as dro
from drolayers.nominal import KNN, Forest, Kernel, NominalDistribution, TiedAtomsWarning

KINDS: dict[str, Callable[[], NominalDistribution]] = {
    "knn": lambda: KNN(6),
    "knn, capped": lambda: KNN(6, max_atoms=4),
    "gaussian": lambda: Kernel(max_atoms=9),
    "gaussian, all": lambda: Kernel(bandwidth=0.5, max_atoms=None),
    "epanechnikov": lambda: Kernel("epanechnikov", max_atoms=9),
    "epanechnikov, scott": lambda: Kernel("epanechnikov", "scott", max_atoms=9),
    "forest": lambda: Forest(trees=12, min_leaf=3, max_atoms=9),
    "forest, all": lambda: Forest(trees=5, max_depth=3, max_atoms=None, max_features="sqrt"),
}
N, DZ, DIM = 60, 3, 2


def data(count: int = N, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Covariates of different units, and outcomes that depend on them."""
    generator = torch.Generator().manual_seed(seed)
    Z = torch.randn(count, DZ, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 100.0, 0.01])
    Y = Z[:, :1] + 0.1 * torch.randn(count, DIM, generator=generator, dtype=torch.float64)
    return Z, Y


def everything(nominal: NominalDistribution, Z: Tensor, Y: Tensor, z: Tensor) -> Tensor:
    """The weight of every training point, from atoms that are told apart by their outcomes."""
    atoms, weights = nominal(z)
    same = (atoms[:, :, None] == Y[None, None]).all(3)
    assert (same.sum(2) == 1).all()
    return (weights[..., None] * same).sum(1)


@pytest.mark.parametrize("kind", KINDS)
def test_atoms_and_weights(kind: str) -> None:
    Z, Y = data()
    nominal = KINDS[kind]().fit(Z, Y)
    z = data(7, seed=1)[0]
    for dtype in (torch.float64, torch.float32):
        atoms, weights = nominal(z.to(dtype))
        assert atoms.dtype == weights.dtype == dtype
        assert atoms.shape == (7, nominal.atoms, DIM)
        assert weights.shape == (7, nominal.atoms)
        assert (weights >= 0).all()
        assert (weights.sum(1) - 1.0).abs().max() <= 1e-6
    assert (weights[:, :-1] >= weights[:, 1:]).all()
    assert (everything(nominal, Z, Y, z).sum(1) - 1.0).abs().max() <= 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_point_need_not_see_itself(kind: str) -> None:
    Z, Y = data()
    nominal = KINDS[kind]().fit(Z, Y)
    index = torch.arange(N)
    atoms, weights = nominal(Z)
    mine = ((atoms == Y[:, None]).all(2) * weights).sum(1)
    assert (mine > 0).all()
    atoms, weights = nominal(Z, exclude=index)
    assert not ((atoms == Y[:, None]).all(2) & (weights > 0)).any()
    assert (weights.sum(1) - 1.0).abs().max() <= 1e-12
    half = torch.where(index % 2 == 0, index, -1)
    mixed = nominal(Z, exclude=half)
    for got, left, full in zip(mixed, nominal(Z, exclude=index), nominal(Z), strict=True):
        assert torch.equal(got[::2], left[::2])
        assert torch.equal(got[1::2], full[1::2])


@pytest.mark.parametrize("kind", ["knn", "gaussian", "epanechnikov"])
def test_leaving_out_is_fitting_without(kind: str) -> None:
    Z, Y = data()
    nominal = KINDS[kind]().fit(Z, Y)
    other = KINDS[kind]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.fit(Z[1:], Y[1:])
    # The same units and bandwidth, so that only the point differs.
    kept = {n: b for n, b in nominal.named_buffers() if n not in ("covariates", "outcomes", "row_weights")}
    for name, buffer in kept.items():
        setattr(other, name, buffer)
    other.covariates = nominal.covariates[1:]
    found, expected = nominal(Z[:1], exclude=torch.tensor([0])), other(Z[:1])
    assert (found[1] - expected[1]).abs().max() <= 1e-12
    # Atoms of one weight may come in any order.
    means = [(weights[..., None] * atoms**power).sum(1) for atoms, weights in (found, expected) for power in (1, 2)]
    assert (means[0] - means[2]).abs().max() <= 1e-12
    assert (means[1] - means[3]).abs().max() <= 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_saved_with_the_model(kind: str) -> None:
    Z, Y = data()
    model = nn.ModuleDict({"nominal": KINDS[kind]().fit(Z, Y), "net": nn.Linear(3, 2)})
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh = nn.ModuleDict({"nominal": KINDS[kind](), "net": nn.Linear(3, 2)})
    fresh.load_state_dict(torch.load(file, weights_only=True))
    z = data(9, seed=2)[0]
    for got, expected in zip(fresh["nominal"](z), model["nominal"](z), strict=True):
        assert torch.equal(got, expected)


def test_a_loaded_forest_needs_no_scikit_learn(tmp_path: object) -> None:
    Z, Y = data()
    nominal = Forest(trees=3, max_atoms=5).fit(Z, Y)
    path = f"{tmp_path}/forest.pt"
    torch.save((nominal.state_dict(), Z[:2], tuple(nominal(Z[:2]))), path)
    script = f"""
import sys
sys.modules["sklearn"] = None
import torch, drolayers as dro
state, z, (atoms, weights) = torch.load({path!r}, weights_only=True)
nominal = dro.nominal.Forest(trees=3, max_atoms=5)
nominal.load_state_dict(state)
found = nominal(z)
assert torch.equal(found[0], atoms) and torch.equal(found[1], weights)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


class Frame:
    """What matters of a data frame here."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self.values


@pytest.mark.parametrize("wrap", [lambda t: t.numpy(), lambda t: t.tolist(), lambda t: Frame(t.numpy())])
def test_arrays_lists_and_frames(wrap: Callable[[Tensor], object]) -> None:
    Z, Y = data()
    expected = KNN(5).fit(Z, Y)(Z[:4])
    for got, known in zip(KNN(5).fit(wrap(Z), wrap(Y))(Z[:4]), expected, strict=True):
        assert torch.equal(got, known)


@pytest.mark.parametrize("make", [lambda: KNN(10), lambda: Kernel(max_atoms=10), lambda: Forest(3, max_atoms=10)])
def test_fewer_points_than_atoms(make: Callable[[], NominalDistribution]) -> None:
    Z, Y = data(4)
    with pytest.warns(UserWarning, match="padded"):
        nominal = make().fit(Z, Y)
    for exclude, count in ((None, 4), (torch.arange(4), 3)):
        atoms, weights = nominal(Z, exclude)
        assert atoms.shape == (4, 10, DIM)
        assert (weights[:, count:] == 0).all()
        assert (weights.sum(1) - 1.0).abs().max() <= 1e-12
        # Padding repeats an atom, so that it lies in the support with the others.
        assert (atoms[:, -1] == atoms[:, 0]).all()


def test_neighbours() -> None:
    Z, Y = data()
    z = data(8, seed=3)[0]
    scale = Z.std(0, correction=0)
    found = everything(KNN(6).fit(Z, Y), Z, Y, z)
    for item in range(8):
        nearest = ((Z - z[item]) / scale).norm(dim=1).argsort()[:6]
        assert (found[item, nearest] - 1 / 6).abs().max() <= 1e-15
    raw = everything(KNN(6, standardize=False).fit(Z, Y), Z, Y, z)
    for item in range(8):
        assert (raw[item, (Z - z[item]).norm(dim=1).argsort()[:6]] > 0).all()


@pytest.mark.parametrize("kind", ["gaussian", "epanechnikov"])
def test_kernels(kind: str) -> None:
    Z, Y = data()
    z = data(8, seed=4)[0]
    nominal = Kernel(kind, bandwidth=1.3, max_atoms=None).fit(Z, Y)  # type: ignore[arg-type]
    squared = ((((Z[None] - z[:, None]) / Z.std(0, correction=0)) ** 2).sum(2)) / 1.3**2
    kernel = torch.exp(-squared / 2) if kind == "gaussian" else (1 - squared).clamp(min=0)
    expected = kernel / kernel.sum(1, keepdim=True)
    atoms, weights = nominal(z)
    means = (weights[..., None] * atoms).sum(1)
    assert (means - expected @ Y).abs().max() <= 1e-12
    assert (weights.sort(1).values - expected.sort(1).values).abs().max() <= 1e-12


def test_bandwidths_by_rule() -> None:
    Z, Y = data()
    silverman, scott = (Kernel(bandwidth=rule).fit(Z, Y).width for rule in ("silverman", "scott"))
    assert abs(float(scott) - N ** (-1 / 7)) <= 1e-12
    assert abs(float(silverman) - (4 / 5) ** (1 / 7) * N ** (-1 / 7)) <= 1e-12
    assert abs(float(Kernel("epanechnikov", "scott").fit(Z, Y).width) - np.sqrt(7) * N ** (-1 / 7)) <= 1e-12


@pytest.mark.parametrize("kind", ["gaussian", "epanechnikov"])
def test_far_away_the_nearest_point_remains(kind: str) -> None:
    Z, Y = data()
    nominal = Kernel(kind, bandwidth=1e-3).fit(Z, Y)  # type: ignore[arg-type]
    atoms, weights = nominal(1e6 * Z[:3])
    assert (weights[:, 0] - 1.0).abs().max() <= 1e-9
    assert bool(atoms.isfinite().all())


def test_forest_weights_are_scikit_learns() -> None:
    from sklearn.ensemble import RandomForestRegressor

    Z, Y = data()
    z = data(8, seed=5)[0]
    nominal = Forest(trees=10, min_leaf=4, max_atoms=None, seed=3).fit(Z, Y)
    target = (Y / Y.std(0, correction=0)).numpy()
    forest = RandomForestRegressor(10, min_samples_leaf=4, max_features=1.0, random_state=3).fit(Z.numpy(), target)
    leaves, mine = forest.apply(Z.numpy()), forest.apply(z.numpy())
    together = mine[:, None, :] == leaves[None]
    expected = (together / together.sum(1, keepdims=True)).mean(2)
    assert np.abs(everything(nominal, Z, Y, z).numpy() - expected).max() <= 1e-12


def test_a_point_alone_in_its_leaf_leaves_all_others() -> None:
    """Without itself such a point has no neighbour, and all others are as good as each other."""
    Z, Y = data()
    nominal = Forest(trees=1, min_leaf=1, max_atoms=None).fit(Z, Y)
    alone = everything(nominal, Z, Y, Z).diagonal() == 1.0
    assert 5 < int(alone.sum()) < N
    atoms, weights = nominal(Z, exclude=torch.arange(N))
    same = (atoms[:, :, None] == Y[None, None]).all(3)
    found = (weights[..., None] * same).sum(1)
    expected = (1.0 - torch.eye(N, dtype=torch.float64)) / (N - 1)
    assert (found[alone] - expected[alone]).abs().max() <= 1e-12
    assert (found[~alone] - expected[~alone]).abs().amax(1).min() > 1e-3


@pytest.mark.parametrize(("name", "value"), [("min_leaf", 20), ("max_depth", 2), ("max_features", 1), ("seed", 4)])
def test_settings_of_a_forest_are_scikit_learns(name: str, value: int) -> None:
    """Each is passed on and matters."""
    from sklearn.ensemble import RandomForestRegressor

    Z, Y = data()
    known = {"min_leaf": 5, "max_depth": None, "max_features": 1.0, "seed": 0}
    found = []
    for given in ({}, {name: value}):
        settings = {**known, **given}
        forest = RandomForestRegressor(
            10,
            min_samples_leaf=settings["min_leaf"],
            max_depth=settings["max_depth"],
            max_features=settings["max_features"],
            random_state=settings["seed"],
        ).fit(Z.numpy(), (Y / Y.std(0, correction=0)).numpy())
        leaves = forest.apply(Z.numpy())
        together = leaves[:, None, :] == leaves[None]
        expected = (together / together.sum(1, keepdims=True)).mean(2)
        # What is not named is the default.
        found.append(everything(Forest(trees=10, max_atoms=None, **given).fit(Z, Y), Z, Y, Z).numpy())
        assert np.abs(found[-1] - expected).max() <= 1e-12
    assert np.abs(found[0] - found[1]).max() > 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_constant_columns_are_harmless(kind: str) -> None:
    Z, Y = data()
    constant = torch.cat([Z, torch.full((N, 1), 1234.5, dtype=torch.float64)], 1)
    with_it = KINDS[kind]().fit(constant, Y)(constant[:5])
    assert all(bool(t.isfinite().all()) for t in with_it)
    if "knn" in kind:
        for got, expected in zip(with_it, KINDS[kind]().fit(Z, Y)(Z[:5]), strict=True):
            assert torch.equal(got, expected)
    only = KINDS[kind]().fit(constant[:, 3:], Y)(constant[:5, 3:])
    assert (only[1].sum(1) - 1.0).abs().max() <= 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_models(kind: str) -> None:
    """A model that is converted takes its nominal distribution along."""
    Z, Y = data()
    nominal = KINDS[kind]().fit(Z, Y)
    expected = nominal(Z[:5])
    atoms, weights = nominal.float()(Z[:5].float())
    assert atoms.dtype == torch.float32
    means = [(w.double()[..., None] * a.double()).sum(1) for a, w in ((atoms, weights), expected)]
    assert (means[0] - means[1]).abs().max() <= 1e-5


def test_wrong_input() -> None:
    Z, Y = data()
    nominal = KNN(3)
    with pytest.raises(dro.ModelError, match="fit"):
        nominal(Z)
    broken = Z.clone()
    broken[5, 1] = float("nan")
    with pytest.raises(dro.ShapeError, match=r"Z holds NaN or infinity in rows \[5\]"):
        nominal.fit(broken, Y)
    with pytest.raises(dro.ShapeError, match="Y holds"):
        nominal.fit(Z, Y / 0.0)
    with pytest.raises(dro.ShapeError, match="rows"):
        nominal.fit(Z, Y[1:])
    with pytest.raises(dro.ShapeError, match="shape"):
        nominal.fit(Z[:, 0], Y)
    with pytest.raises(dro.ShapeError, match="numbers"):
        nominal.fit([["a"]], [[1.0]])
    with pytest.raises(dro.ShapeError, match="at least one"):
        nominal.fit(Z[:0], Y[:0])
    nominal.fit(Z, Y)
    with pytest.raises(dro.ShapeError, match=r"\(batch, 3\)"):
        nominal(Z[:, :2])
    with pytest.raises(dro.ShapeError, match="NaN"):
        nominal(broken)
    for exclude in (torch.tensor([1, 2]), torch.full((N,), N), torch.zeros(N)):
        with pytest.raises(dro.ShapeError, match="exclude"):
            nominal(Z, exclude)
    with pytest.warns(UserWarning, match="padded"):
        nominal.fit(Z[:1], Y[:1])
    with pytest.raises(dro.ShapeError, match="only training point"):
        nominal(Z[:1], exclude=torch.tensor([0]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: KNN(0),
        lambda: KNN(2, max_atoms=0),
        lambda: Kernel("box"),  # type: ignore[arg-type]
        lambda: Kernel(bandwidth=-1.0),
        lambda: Kernel(bandwidth="best"),  # type: ignore[arg-type]
        lambda: Forest(0),
        lambda: Forest(min_leaf=0),
        lambda: Forest(max_depth=0),
    ],
)
def test_wrong_settings(make: Callable[[], NominalDistribution]) -> None:
    with pytest.raises(dro.ModelError):
        make()


@pytest.mark.parametrize("bandwidth", [None, 0.0, "best"])
def test_a_wrong_bandwidth_is_told_the_rules(bandwidth: Any) -> None:
    with pytest.raises(dro.ModelError, match=r"finite number, 'silverman' or 'scott', not"):
        Kernel(bandwidth=bandwidth)


def test_one_type_of_nominal_distribution() -> None:
    Z, Y = data()
    found = KNN(4).fit(Z, Y)(Z[:3].float())
    assert isinstance(found, dro.Nominal)
    atoms, weights = found
    assert atoms is found.atoms
    assert found.to(Z).weights.dtype == torch.float64
    assert torch.equal(found.at([2, 0]).atoms, atoms[[2, 0]])
    checked = dro.Nominal.of([atoms, weights], DIM, 3)
    assert checked.atoms.dtype == torch.float64
    torch.testing.assert_close(checked.mean(checked.atoms), (weights[..., None] * atoms).sum(1).double())


def test_more_atoms_than_any_machine_holds_are_one_sentence() -> None:
    with pytest.warns(UserWarning, match="padded"):
        nominal = KNN(10**12).fit(*data(5))
    with pytest.raises(dro.ModelError, match="asks for 1000000000000 atoms and has 5 training points: ask for fewer"):
        nominal(data(2, seed=1)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_states_that_do_not_fit_together_are_not_loaded(kind: str) -> None:
    state = KINDS[kind]().fit(*data()).state_dict()
    for name, value in state.items():
        if value.dim() and len(value) > 1:
            with pytest.raises(RuntimeError, match=r"do not fit together"):
                KINDS[kind]().load_state_dict({**state, name: value[:-1]})
    if "left" in state:
        with pytest.raises(RuntimeError, match="left must lead from every node to a later one"):
            KINDS[kind]().load_state_dict({**state, "left": torch.zeros_like(state["left"])})


TIED = r"{} takes its {} atoms from training points .* up to 100 of them for one context.* ask for more atoms"


@pytest.mark.parametrize(
    ("nominal", "atoms"), [(KNN(20), 20), (KNN(90, max_atoms=20), 20), (Kernel(), 50), (Forest(trees=5), 50)]
)
def test_choosing_among_equals_is_said_once(nominal: NominalDistribution, atoms: int) -> None:
    """With weekdays as contexts the order of the rows says which points are atoms."""
    Z, Y = torch.arange(500, dtype=torch.float64)[:, None] % 5, data(500)[1]
    with pytest.warns(TiedAtomsWarning, match=TIED.format(type(nominal).__name__, atoms)) as told:
        nominal.fit(Z, Y)
    assert [Path(warning.filename).name for warning in told] == ["test_nominal.py"]


def test_equals_that_are_all_taken_or_few_are_no_matter() -> None:
    weekday, Y = torch.arange(500, dtype=torch.float64)[:, None] % 5, data(500)[1]
    apart = torch.cat([weekday, Y[:, :1]], 1)
    degrees = torch.arange(500, dtype=torch.float64)[:, None] // 2
    with warnings.catch_warnings():
        warnings.simplefilter("error", TiedAtomsWarning)
        for nominal in (KNN(100), KNN(600), KNN(102), Kernel(max_atoms=None), Kernel(bandwidth=0.1, max_atoms=100)):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*padded")
                nominal.fit(weekday, Y)
        for nominal in (KNN(20), Kernel(), Forest(trees=5)):
            nominal.fit(apart, Y)
        KNN(20).fit(degrees, Y)
