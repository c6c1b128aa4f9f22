"""Weights of rows: whole ones equal repeated rows, zeros equal dropped rows, and their scale does not matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import drolayers as dro
from drolayers.nominal import KNN, Forest, Kernel, NominalDistribution

KINDS: dict[str, Callable[[], NominalDistribution]] = {
    "neighbours": lambda: KNN(k=8),
    "gaussian": lambda: Kernel("gaussian", max_atoms=None),
    "epanechnikov": lambda: Kernel("epanechnikov", max_atoms=6),
    "forest": lambda: Forest(trees=7, min_leaf=3, max_atoms=None),
}


def data(count: int = 30) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    Z = torch.rand(count, 2, generator=generator).double()
    Y = 5.0 * Z + torch.randn(count, 2, generator=generator).double()
    return Z, Y, torch.randint(0, 4, (count,), generator=generator).double()


def moments(nominal: NominalDistribution, z: Tensor) -> Tensor:
    """Means and second moments of the distributions of some contexts, which know no order of atoms."""
    atoms, weights = nominal(z)
    torch.testing.assert_close(weights.sum(1), torch.ones(len(z), dtype=torch.float64))
    features = torch.cat([atoms, atoms.square(), atoms.prod(2, keepdim=True).tanh()], 2)
    return (weights[..., None] * features).sum(1)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_weight_zero_are_absent(kind: str) -> None:
    Z, Y, w = data()
    kept, z = w > 0, torch.rand(9, 2, dtype=torch.float64)
    weighted, dropped = KINDS[kind]().fit(Z, Y, w), KINDS[kind]().fit(Z[kept], Y[kept], w[kept])
    torch.testing.assert_close(moments(weighted, z), moments(dropped, z), rtol=1e-12, atol=1e-12)
    # Rows of fit keep their numbers where they are left out.
    rows, places = kept.nonzero()[:, 0], torch.arange(int(kept.sum()))
    mine, theirs = weighted(Z[kept], exclude=rows), dropped(Z[kept], exclude=places)
    torch.testing.assert_close(mine.weights, theirs.weights, rtol=1e-12, atol=1e-12)
    absent = (~kept).nonzero()[:, 0]
    torch.testing.assert_close(weighted(Z[absent], exclude=absent).weights, weighted(Z[absent]).weights)


@pytest.mark.parametrize("kind", KINDS)
def test_their_scale_does_not_matter(kind: str) -> None:
    Z, Y, w = data()
    z = torch.rand(9, 2, dtype=torch.float64)
    one = KINDS[kind]().fit(Z, Y, w)
    for factor in (1e-200, 0.25, 7.0, 1e200):
        torch.testing.assert_close(moments(KINDS[kind]().fit(Z, Y, factor * w), z), moments(one, z))
    equal, plain = KINDS[kind]().fit(Z, Y, torch.full((30,), 3.0)), KINDS[kind]().fit(Z, Y)
    torch.testing.assert_close(moments(equal, z), moments(plain, z), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("kind", ["gaussian", "epanechnikov"])
def test_whole_weights_of_kernels_are_repeated_rows(kind: Any) -> None:
    Z, Y, w = data()
    twice = w.long()
    made = lambda: Kernel(kind, bandwidth=0.7, max_atoms=None)  # noqa: E731
    z = torch.rand(9, 2, dtype=torch.float64)
    repeated = made().fit(Z.repeat_interleave(twice, 0), Y.repeat_interleave(twice, 0))
    torch.testing.assert_close(moments(made().fit(Z, Y, w), z), moments(repeated, z))


def test_whole_weights_of_neighbours_are_repeated_rows() -> None:
    """The k nearest rows are those without repetition: as many repeated ones as they stand for."""
    Z, Y, w = data()
    twice, k = w.long() + 1, 5
    weighted = KNN(k).fit(Z, Y, twice)
    repeated_Z, repeated_Y = Z.repeat_interleave(twice, 0), Y.repeat_interleave(twice, 0)
    for z in torch.rand(9, 1, 2, dtype=torch.float64):
        standard = (z - weighted.shift) / weighted.scale
        stands_for = int(twice[torch.cdist(standard, weighted.covariates)[0].topk(k, largest=False).indices].sum())
        torch.testing.assert_close(moments(weighted, z), moments(KNN(stands_for).fit(repeated_Z, repeated_Y), z))


def test_whole_weights_of_a_forest_are_repeated_rows() -> None:
    """One covariate of two values: every tree has the same two leaves, whatever its sample."""
    _, Y, w = data()
    Z = (torch.arange(30) % 2).double()[:, None]
    Y, twice = Y + 100.0 * Z, w.long() + 1
    made = lambda: Forest(trees=5, min_leaf=1, max_depth=1, max_atoms=None)  # noqa: E731
    repeated = made().fit(Z.repeat_interleave(twice, 0), Y.repeat_interleave(twice, 0))
    torch.testing.assert_close(moments(made().fit(Z, Y, twice), Z[:2]), moments(repeated, Z[:2]))


def test_weights_of_a_forest_reach_its_trees() -> None:
    from sklearn.ensemble import RandomForestRegressor

    Z, Y, w = data()
    y = Y[:, :1]
    mine = Forest(trees=9, min_leaf=3, max_atoms=None, seed=4).fit(Z, y, w + 1.0)
    theirs = RandomForestRegressor(9, min_samples_leaf=3, random_state=4, max_features=1.0)
    theirs.fit(Z.numpy(), (y[:, 0] / 2.0).numpy(), (w + 1.0).numpy())
    np.testing.assert_array_equal(mine.leaf.numpy().T, theirs.apply(Z.numpy()))


def test_weights_are_saved() -> None:
    Z, Y, w = data()
    fitted, loaded = Kernel().fit(Z, Y, w), Kernel()
    loaded.load_state_dict(fitted.state_dict())
    torch.testing.assert_close(loaded(Z).weights, fitted(Z).weights)
    with pytest.raises(RuntimeError, match="scale and row_weights must be positive"):
        Kernel().load_state_dict({**fitted.state_dict(), "row_weights": torch.zeros_like(fitted.row_weights)})


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        (np.ones((30, 1)), r"sample_weight must have shape \(30,\)"),
        (np.ones(29), r"sample_weight must have shape \(30,\)"),
        (2.0, r"sample_weight must have shape \(30,\)"),
        (np.r_[np.nan, np.ones(29)], r"sample_weight holds NaN or infinity in rows \[0\]"),
        (np.r_[np.ones(29), np.inf], r"sample_weight holds NaN or infinity in rows \[29\]"),
        (np.r_[1.0, -1.0, np.ones(28)], r"sample_weight must not be negative, as in rows \[1\]"),
        (np.zeros(30), "sample_weight must not be zero in every row"),
        (["a"] * 30, "sample_weight holds text"),
        (pd.Series(np.ones(30), index=range(1, 31)), "Z and sample_weight have different indexes"),
    ],
)
def test_wrong_weights_are_one_sentence(weights: Any, told: str) -> None:
    Z, Y, _ = data()
    Z = pd.DataFrame(Z.numpy()) if isinstance(weights, pd.Series) else Z
    with pytest.raises((dro.ModelError, dro.ShapeError), match=told) as caught:
        KNN(k=3).fit(Z, Y, sample_weight=weights)
    assert "\n" not in str(caught.value)
