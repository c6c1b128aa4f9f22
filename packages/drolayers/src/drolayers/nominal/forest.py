"""Leaf co-membership in a random forest."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from conelayers.internals import weighted_mean, whole
from drolayers.extras import require
from drolayers.nominal.base import NominalDistribution, excluded

_TABLES = ("left", "right", "feature", "leaf")


@final
class Forest(NominalDistribution):
    """Training outcomes weighted by how often, and with how few others, they share a leaf with z.

    ω_n(z) is the mean over trees of 1[n in the leaf of z] / (size of that leaf) (Bertsimas and Kallus, 2020), and with
    weights w of rows that of w_n 1[n in the leaf of z] / (sum of w over that leaf). The trees
    are grown by scikit-learn and kept as tensors, so that evaluating needs no scikit-learn. An excluded training point
    is taken out of every leaf; the trees themselves were grown with it.

    Args:
        trees: number of trees.
        min_leaf: smallest number of training points (in a tree's bootstrap sample) a leaf.
        max_depth: deepest level; None for no limit.
        max_features: how many covariates a split chooses from, as in scikit-learn.
        max_atoms: keep the heaviest atoms only; None keeps every training point.
        seed: of the forest.
        jobs: number of trees grown at once, as joblib counts them.
    """

    left: Tensor
    right: Tensor
    feature: Tensor
    threshold: Tensor
    leaf: Tensor

    def __init__(
        self,
        trees: int = 100,
        min_leaf: int = 5,
        max_depth: int | None = None,
        max_features: float | str | None = 1.0,
        max_atoms: int | None = 50,
        seed: int = 0,
        jobs: int | None = None,
    ) -> None:
        # Trees split at ranks, so the units of the covariates do not matter to them.
        super().__init__(max_atoms, standardize=False)
        whole("trees", trees)
        whole("min_leaf", min_leaf)
        if max_depth is not None:
            whole("max_depth", max_depth)
        self.trees, self.min_leaf, self.max_depth = trees, min_leaf, max_depth
        self.max_features, self.seed, self.jobs = max_features, seed, jobs
        for name in _TABLES:
            self.register_buffer(name, torch.zeros(0, 0, dtype=torch.int64))
        self.register_buffer("threshold", torch.zeros(0, 0, dtype=torch.float32))

    def learn(self) -> None:
        """Grow the forest on standardised outcomes, and keep its trees as tables (tree, node)."""
        mean = weighted_mean(self.outcomes, self.row_weights)
        deviation = weighted_mean((self.outcomes - mean).square(), self.row_weights).sqrt()
        outcomes = self.outcomes / torch.where(deviation > 0, deviation, torch.ones_like(deviation))
        forest = require("sklearn.ensemble", "learning").RandomForestRegressor(
            self.trees,
            min_samples_leaf=self.min_leaf,
            max_depth=self.max_depth,
            max_features=self.max_features,
            random_state=self.seed,
            n_jobs=self.jobs,
        )
        target = outcomes.cpu().numpy()
        equal = bool((self.row_weights == self.row_weights[0]).all())
        weights = None if equal else self.row_weights.cpu().numpy()
        forest.fit(self.covariates.cpu().numpy(), target[:, 0] if target.shape[1] == 1 else target, weights)
        grown = [estimator.tree_ for estimator in forest.estimators_]
        device, nodes = self.covariates.device, max(tree.node_count for tree in grown)

        def table(name: str, fill: float) -> Tensor:
            rows = np.full((len(grown), nodes), fill)
            for row, tree in zip(rows, grown, strict=True):
                row[: tree.node_count] = getattr(tree, name)
            return torch.as_tensor(rows, device=device)

        self.left, self.right = table("children_left", -1).long(), table("children_right", -1).long()
        self.feature = table("feature", 0).long().clamp(min=0)
        self.threshold = _rounded_down(table("threshold", 0.0))
        self.leaf = self._leaves(self.covariates)

    def _leaves(self, z: Float[Tensor, "batch dz"]) -> Int[Tensor, "tree batch"]:
        """The leaf of every point in every tree."""
        points = z.float().to(self.threshold)
        node = torch.zeros(len(self.left), len(z), dtype=torch.int64, device=z.device)
        while True:
            below = self.left.gather(1, node)
            inside = below >= 0
            if not bool(inside.any()):
                return node
            value = points.T.gather(0, self.feature.gather(1, node))
            step = torch.where(value <= self.threshold.gather(1, node), below, self.right.gather(1, node))
            node = torch.where(inside, step, node)

    def weigh(
        self, z: Float[Tensor, "batch dz"], exclude: Int[Tensor, "batch"] | None
    ) -> Float[Tensor, "batch training"]:
        """The mean of the trees' weights; a tree whose leaf holds nothing but the excluded point has no say."""
        count = self.leaf.shape[1]
        hidden = None if exclude is None else excluded(exclude, count)
        total = z.new_zeros(len(z), count)
        others = torch.zeros_like(total)
        for mine, theirs in zip(self._leaves(z), self.leaf, strict=True):
            together = mine[:, None] == theirs
            if hidden is not None:
                together = together & ~hidden
            # The weight of n itself is multiplied to the mean afterwards.
            size = together.to(total) @ self.row_weights.to(total)
            total += together.to(total) / torch.where(size > 0, size, 1.0)[:, None]
        if hidden is not None:
            # With every leaf empty, all other points are as good as each other.
            others = (~hidden).to(total)
        return torch.where(total.sum(1, keepdim=True) > 0, total, others)

    def misfit(self) -> str | None:
        """Children stand behind their parents, so that every path ends."""
        if why := super().misfit():
            return why
        (points, width), shape = self.covariates.shape, self.left.shape
        tables = [tuple(t.shape) for t in (self.left, self.right, self.feature, self.threshold)]
        if len(shape) != 2 or set(tables) != {tuple(shape)} or tuple(self.leaf.shape) != (shape[0], points):
            return f"the tables of its trees have shapes {[*tables, tuple(self.leaf.shape)]}, which do not fit together"
        node, inner = torch.arange(shape[1], device=self.left.device), self.left >= 0
        for name in ("left", "right"):
            child = getattr(self, name)
            if bool((inner & ((child <= node) | (child >= shape[1]))).any()):
                return f"{name} must lead from every node to a later one"
        right = bool(((self.feature >= 0) & (self.feature < width)).all())
        return None if right else f"feature must lie between 0 and {width - 1}"


def _rounded_down(threshold: Tensor) -> Tensor:
    """The largest single-precision number below: scikit-learn compares single-precision covariates with thresholds."""
    single = threshold.float()
    return torch.where(
        single.double() > threshold, torch.nextafter(single, torch.full_like(single, -torch.inf)), single
    )
