"""Units in which the numbers of a program are of one size, item by item: an answer does not depend on the user's own.

With x = βDx̂, z = κEẑ and s = βE⁻¹ŝ the program in hats has

    P̂ = DPD·β/κ,   Â = EAD,   q̂ = Dq/κ,   b̂ = Eb/β,

where D is diagonal and E maps each cone onto itself: a factor for every row of the orthant, one for a whole
second-order or exponential cone, two for a power cone, and for a semidefinite cone the congruence with a diagonal
matrix. A square is a second-order cone of (u + v, u - v, w), where uv ≥ w², and CVXPY's u is one: there E has a boost
besides (:class:`Boost`), u times λ and v over λ. Without it the one stays a one whatever the square is counted in.
Solvers, verdicts and derivatives work in hats.

The factors are those of Curtis and Reid (1972), with q and b among the numbers: their logarithms minimise the sum of
squared logarithms of all numbers of the program in hats. A program whose variables, rows or objective are counted in
other units has other factors and the same hats; Ruiz's iteration, which looks at largest entries only, has no such
property, and a newsvendor that counts in units of 1e-8 failed under it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Bool, Float, Int
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from conelayers.program.program import ConeProgram, Values, once
from conelayers.program.replay import replayed
from conelayers.program.semidefinite import triangle

STEPS = 24
"""Of conjugate gradients, at most."""

GRID = 4096.0
"""Parts of one to which logarithms are rounded."""

ROUNDING = 1e-13
"""Numbers so much smaller than the others of their row and column are left out: rounding leaves them for zeros. Where
nothing is left of the objective without them, they may be no rounding: ``Engine`` looks again, with ``whole``, down to
the square of this (a bound of zero is one of 1e-100)."""

BESIDE = 1e-7
"""The same for those of b and P beside the middle one: a decision that is zero comes as 1e-12."""

LOOSE = 1e4
"""Multiple of a typical number beyond which one of b or q is taken for a bound or a penalty that never binds."""

STAKE = 1e-5
"""Share of what is at stake up to which a number contributes nothing to it."""

REACH = 7.3
"""Multiple of the others beyond which a right-hand side that contributes nothing belongs to a bound that never binds:
no round number, since bounds are, and rounding would decide."""

DEAR = 1.3e3
"""The same of a cost, beside the middle one too: what is learnt may well be the costs of what is not chosen."""

HIDDEN = 0.1
"""Power of it that is left of a cost at least in units for which it counted."""

SETTLED = 0.05
"""Change of all logarithms by a step after which the next ones do not matter."""


@final
@dataclass(frozen=True, eq=False)
class Boost:
    """Rows that hold u + v and u - v of a product uv, and the λ of every pair."""

    rows: Int[Tensor, "2 pair"]
    size: Float[Tensor, "batch pair"]

    def __call__(self, vector: Float[Tensor, "batch row"], power: int = 1) -> Float[Tensor, "batch row"]:
        """A symmetric matrix times a vector of rows, or its inverse (power -1)."""
        if not self.size.shape[1]:
            return vector
        one, other = vector[:, self.rows[0]], vector[:, self.rows[1]]
        u, v = 0.5 * (one + other) * self.size**power, 0.5 * (one - other) / self.size**power
        rows = self.rows.reshape(1, -1).expand(len(u), -1)
        return vector.scatter(1, rows, torch.cat([u + v, u - v], 1))


NO_BOOST = Boost(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(1, 0, dtype=torch.float64))


@final
@dataclass(frozen=True, eq=False)
class Units:
    """D, E (factors and boosts), κ and β of a batch; one row where all items share their matrices."""

    D: Float[Tensor, "batch column"]
    E: Float[Tensor, "batch row"]
    kappa: Float[Tensor, "batch 1"]
    beta: Float[Tensor, "batch 1"]
    boost: Boost = NO_BOOST

    @classmethod
    def of(
        cls, program: ConeProgram, values: Values, whole: Bool[Tensor, "batch"] | None = None
    ) -> tuple[Units, Values]:
        """The units of a batch, and its numbers in them. Where all items share P and A, they go on sharing them.

        Args:
            program: the structure.
            values: the numbers.
            whole: items of which the smallest numbers of A and q count too; none unless given.
        """
        balance = _balance(program, values.q.device)
        numbers = (values.P, values.A, values.q, values.b)
        if balance.constant is None or whole is not None:
            D, E, boost = balance.factors(*numbers, whole)
            if balance.constant is not None and whole is not None:
                # Those of the others are what they were.
                one, two, three = balance.constant
                D, E = torch.where(whole[:, None], D, one), torch.where(whole[:, None], E, two)
                boost = Boost(boost.rows, torch.where(whole[:, None], boost.size, three.size))
            kappa, beta, P, A, q, b = balance.scaled(D, E, boost, *numbers, whole=whole)
        else:
            D, E, boost = balance.constant
            given = (values.P[:1], values.A[:1], values.q, values.b)
            kappa, beta, P, A, q, b = replayed(program, "units", partial(balance.scaled, D, E, boost), *given)
        return cls(D, E, kappa, beta, boost), Values(P.expand(len(q), -1), A.expand(len(q), -1), q, b, values.constant)

    @staticmethod
    def leave_out(program: ConeProgram, values: Values) -> Bool[Tensor, "batch"]:
        """Items with numbers in A or q that may be no rounding, and did not count for their units."""
        return _balance(program, values.q.device).leave_out(values.P, values.A, values.q, values.b)

    @staticmethod
    def far(program: ConeProgram, values: Values) -> Bool[Tensor, "batch"]:
        """Items, in any units, whose own may be those of bounds or penalties that never bind."""
        firm, every = _balance(program, values.q.device).firm, values.q.new_ones(1, dtype=torch.bool)
        b, q = values.b.T, values.q.T
        return (_near(b, every, firm) != b).any(0) | (_near(q, every) != q).any(0)

    @classmethod
    def near(
        cls, program: ConeProgram, own: Values, values: Values, x: Tensor, z: Tensor, asked: Bool[Tensor, "batch"]
    ) -> tuple[Int[Tensor, "some"], Units, Values]:
        """Units without bounds and penalties that never bind: the items that have such, their units, their numbers.

        What a number contributes to Σ|qx| + Σ|bz| tells which those are: nothing at all. Where no right-hand side is
        left, the quadratic form tells how large solutions are.

        Args:
            program: the structure.
            own: the numbers.
            values: the same in the units of the solutions.
            x: solutions.
            z: their multipliers.
            asked: which items matter.
        """
        balance = _balance(program, own.q.device)
        by_row, by_column = (values.b * z).abs(), (values.q * x).abs()
        nothing = STAKE * (by_row.sum(1, keepdim=True) + by_column.sum(1, keepdim=True))
        rows, columns = (by_row <= nothing) & (own.b > 0), (by_column <= nothing) & (own.q != 0)
        rows[:, balance.firm] = False
        # Few items may have such numbers, and hardly any has.
        wide, dear = balance.far(values, rows, columns, HIDDEN)
        formed = (own.P != 0).any(1)
        unsized = (own.b == 0).all(1) & formed
        alone = (own.b.masked_fill(rows, 0.0) == 0).all(1) & formed
        items = (asked & (wide.any(1) | dear.any(1) | alone)).nonzero()[:, 0]
        own, rows, columns, unsized = own[items], rows[items], columns[items], unsized[items]
        rows, columns = balance.far(balance.without(own, rows, columns)[1], rows, columns)
        some = (rows.any(1) | columns.any(1) | unsized).nonzero()[:, 0]
        return items[some], *balance.without(own[some], rows[some], columns[some])

    @classmethod
    def plain(cls, values: Values) -> tuple[Units, Values]:
        """Rows and columns as they are; without a quadratic form, q and b are divided by their largest entries.

        Dividing q and b apart would multiply a quadratic form by the ratio of both, which one far bound can make 1e7
        (QFORPLAN of Maros and Meszaros).
        """
        one = torch.ones_like(values.q[:, :1].sum(1, keepdim=True))
        if values.P.shape[1]:
            return cls(one, one, one, one), values
        kappa, beta = _size(values.q), _size(values.b)
        numbers = Values(values.P, values.A, values.q / kappa, values.b / beta, values.constant)
        return cls(one, one, kappa, beta), numbers

    def __getitem__(self, items: Tensor) -> Units:
        """Some items."""

        def some(t: Tensor) -> Tensor:
            return t[items] if len(t) == len(self.kappa) else t

        boost = Boost(self.boost.rows, some(self.boost.size))
        return Units(some(self.D), some(self.E), some(self.kappa), some(self.beta), boost)

    def own(self, x: Tensor, z: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A point in the program's own units."""
        return x * self.D * self.beta, self.boost(z) * self.E * self.kappa, self.boost(s, -1) / self.E * self.beta

    def hats(self, x: Tensor, z: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same the other way."""
        z, s = self.boost(z / (self.E * self.kappa), -1), self.boost(s * self.E / self.beta)
        return x / (self.D * self.beta), z, s

    def dual_seed(self, dz: Tensor) -> Tensor:
        """Convert a gradient with respect to multipliers in the program's own units."""
        return self.boost(dz * self.E * self.kappa)

    def adjoint(self, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """The solution of the adjoint equations in the program's own units."""
        return g * self.D / self.kappa, self.boost(h) * self.E / self.beta

    def adjoint_hats(self, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """The same the other way."""
        return g * self.kappa / self.D, self.boost(h * self.beta / self.E, -1)


@final
class _Balance:
    """The least-squares problem of a program's structure: one equation a number, two unknown logarithms in most."""

    def __init__(self, program: ConeProgram, device: torch.device) -> None:
        row, _, P_row, *_ = program.on(torch.device("cpu"))
        self.row, self.column, self.P_row, self.P_column, *_ = program.on(device)
        self.rows, self.columns = program.rows, program.columns
        # Rows that hold with equality or in a cone; the others may be bounds that never bind.
        cones, number = program.cones, torch.arange(program.rows)
        firm = (number < cones.zero) | (number >= cones.zero + cones.nonneg)
        # Unknown logarithms: of rows or cones, of columns, of 1/β and of 1/κ.
        by_row = _row_unknowns(program)
        pairs, self.paired, self.pair, self.side = (t.to(device) for t in _products(program))
        self.pairs, self.cones = pairs, by_row.shape[1]
        plain = torch.ones(program.rows, dtype=torch.bool).index_fill(0, pairs.reshape(-1).cpu(), False)
        self.plain, self.firm, self.firm_plain = (
            chosen.nonzero()[:, 0].to(device) for chosen in (plain, firm, firm[plain])
        )
        self.first = self.cones + pairs.shape[1]
        # Logarithms of λ: of either sign in the rows of a pair, entry by entry of A.
        nothing = sp.csr_array((program.rows, pairs.shape[1]))
        signs = np.repeat([1.0, -1.0], pairs.shape[1])
        which = np.tile(np.arange(pairs.shape[1]), 2)
        by_pair = sp.csr_array((signs, (pairs.cpu().numpy().ravel(), which)), shape=nothing.shape)
        entries = (self.side.cpu().numpy(), (self.paired.cpu().numpy(), self.pair.cpu().numpy()))
        of_entry = sp.csr_array(entries, shape=(len(row), pairs.shape[1]))
        by_column = sp.eye_array(program.columns, format="csr")
        one = sp.csr_array(np.ones((1, 1)))

        def ones(count: int) -> sp.csr_array:
            return sp.csr_array(np.ones((count, 1)))

        P_sides = by_column[P_row.numpy()] + by_column[program.P_indices.numpy()]
        height = P_sides.shape[0]
        matrix = sp.block_array(
            [
                [by_row[row.numpy()], of_entry, by_column[program.A_indices.numpy()], None, None],
                [by_row, by_pair, None, ones(program.rows), None],
                [None, None, by_column, None, ones(program.columns)],
                [None, None, P_sides, -ones(height), ones(height)],
                # No equation, only a width for all.
                [None, None, None, 0.0 * one, 0.0 * one],
            ],
            format="csr",
        )[:-1]
        # Numbers of A and q, in the order of the equations.
        counts = (len(row), program.rows, program.columns, height)
        self.whole = torch.repeat_interleave(torch.tensor([True, False, True, False]), torch.tensor(counts)).to(device)
        spread = sp.hstack([by_row, nothing, sp.csr_array((program.rows, program.columns + 2))], format="csr")
        self.M, self.MT, self.squares, self.rows_of = (
            _sparse(m, device) for m in (matrix, matrix.T, matrix.T.power(2), spread)
        )
        # Where P and A are constants, what else is constant settles factors that serve all items.
        maps = (program.P_map, program.A_map, program.q_map, program.b_map)
        numbers = (0.0 * m.constant if m.varies else m.constant for m in maps)
        # A product's units are every item's own, since its number and all others may vary.
        fixed = not (program.A_map.varies or program.P_map.varies or len(self.paired))
        self.numbers = tuple(t[None].to(device) for t in numbers) if fixed else None
        self.constant = self.factors(*self.numbers) if self.numbers is not None else None

    def factors(
        self, P: Tensor, A: Tensor, q: Tensor, b: Tensor, whole: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Boost]:
        """D, E and the boosts of a batch."""
        if len(self.paired):
            one, other = b[:, self.pairs[0]], b[:, self.pairs[1]]
            rows = self.pairs.reshape(1, -1).expand(len(b), -1)
            b = b.scatter(1, rows, torch.cat([0.5 * (one + other), 0.5 * (one - other)], 1))
        if whole is not None:
            q, b = _near(q.T, whole).T, _near(b.T, whole, self.firm).T
        numbers = torch.cat([A.T, b.T, q.T, P.T]).abs()
        limit = self._negligible(A.T.abs(), b.T.abs(), q.T.abs(), P.T.abs())
        if whole is not None:
            limit = torch.where(whole & self.whole[:, None], ROUNDING * limit, limit)
        given = (numbers > limit) & numbers.isfinite()
        logs = torch.where(given, numbers, torch.ones_like(numbers)).log()
        u = self._solved(given.to(logs), logs)
        # On a grid, so that an item has the same factors to the last bit whatever is solved beside it.
        u = (u * GRID).round() / GRID
        D = u[self.first : self.first + self.columns].exp().T
        return D, (self.rows_of @ u).exp().T, Boost(self.pairs, u[self.cones : self.first].exp().T)

    def scaled(
        self,
        D: Tensor,
        E: Tensor,
        boost: Boost,
        P: Tensor,
        A: Tensor,
        q: Tensor,
        b: Tensor,
        whole: Tensor | None = None,
        sizes: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """κ and β for given factors, unless they are known, and the numbers in these units."""
        q, b = q * D, boost(b * E)
        kappa, beta = sizes or self.sizes(q, b, whole)
        A = A[: len(D)] * E[:, self.row] * D[:, self.column]
        if len(self.paired):
            size = boost.size[:, self.pair]
            A[:, self.paired] *= torch.where(self.side > 0, size, 1.0 / size)
        P = P[: len(D)] * D[:, self.P_row] * D[:, self.P_column]
        return kappa, beta, P * (beta / kappa) if P.shape[1] else P, A, q / kappa, b / beta

    def sizes(self, q: Tensor, b: Tensor, whole: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """κ and β of a batch, whose q and b are in the units of D and E."""
        # The largest entry, so that solutions are of size one, unless it is a bound or a penalty that never binds.
        near_q, near_b = (q, b) if whole is None else (_near(q.T, whole).T, _near(b.T, whole, self.firm).T)
        kappa = torch.minimum(_size(q), LOOSE * _typical(near_q, _middle(near_q.T)))
        return kappa, torch.minimum(_size(b), LOOSE * _typical(near_b, _middle(near_b.T, self.firm)))

    def far(
        self, values: Values, rows: Bool[Tensor, "batch row"], columns: Bool[Tensor, "batch column"], power: float = 1.0
    ) -> tuple[Bool[Tensor, "batch row"], Bool[Tensor, "batch column"]]:
        """Those of some rows whose b, and columns whose q, is far beyond all others, by a power of the bars."""
        b, q = values.b.abs(), values.q.abs()
        # One matrix for all items is looked at once.
        entries = (values.A[:1] if values.A.stride(0) == 0 else values.A).abs()
        widths = b.new_zeros(len(entries), b.shape[1]).scatter_reduce(1, self.row.expand_as(entries), entries, "amax")
        others = [torch.where(out, torch.zeros_like(t), t) for out, t in ((rows, b), (columns, q))]
        widest, dearest = (t.amax(1, keepdim=True) if t.shape[1] else t.new_zeros(len(t), 1) for t in others)
        # Where nothing else is left there is nothing to be far from.
        formed = (values.P != 0).any(1, keepdim=True)
        rows = rows & ((widest > 0) | formed) & (b > REACH**power * widths * torch.where(widest > 0, widest, 1.0))
        usual = torch.maximum(_middle(q.T).T, dearest)
        return rows, columns & (dearest > 0) & (q > DEAR**power * usual)

    def without(
        self, own: Values, rows: Bool[Tensor, "batch row"], columns: Bool[Tensor, "batch column"]
    ) -> tuple[Units, Values]:
        """Units as if there were neither these rows nor the costs of these columns, and all numbers in them."""
        P, A, q, b = (own.P, own.A, own.q, own.b) if self.numbers is None else self.numbers
        P, A, q, b = (t.expand(len(own), -1) for t in (P, A, q, b))
        A, q, b = A.masked_fill(rows[:, self.row], 0.0), q.masked_fill(columns, 0.0), b.masked_fill(rows, 0.0)
        D, E, boost = self.factors(P, A, q, b)
        q, b = own.q.masked_fill(columns, 0.0) * D, boost(own.b.masked_fill(rows, 0.0) * E)
        kappa, beta = self.sizes(q, b)
        if P.shape[1]:
            form = own.P * D[:, self.P_row] * D[:, self.P_column]
            beta = torch.where((b == 0).all(1, keepdim=True), kappa / _size(form), beta)
        # Such a row has the size of its bound, in which nothing else is counted.
        E = torch.where(rows, beta / own.b, E)
        *_, P, A, q, b = self.scaled(D, E, boost, own.P, own.A, own.q, own.b, sizes=(kappa, beta))
        return Units(D, E, kappa, beta, boost), Values(P, A, q, b, own.constant)

    def leave_out(self, P: Tensor, A: Tensor, q: Tensor, b: Tensor) -> Tensor:
        """Items of whose numbers in A or q some are left out though they may be no rounding."""
        numbers = torch.cat([A.T, b.T, q.T, P.T]).abs()
        limit = self._negligible(A.T.abs(), b.T.abs(), q.T.abs(), P.T.abs())
        return ((numbers > ROUNDING * limit) & (numbers <= limit) & self.whole[:, None]).any(0)

    def _negligible(self, A: Tensor, b: Tensor, q: Tensor, P: Tensor) -> Tensor:
        """Up to which size numbers are what rounding has left of zeros, beside all others of their row and column."""

        def largest(index: Tensor, count: int) -> Tensor:
            return A.new_zeros(count, A.shape[1]).scatter_reduce(0, index[:, None].expand_as(A), A, "amax")[index]

        least = torch.minimum(largest(self.row, self.rows), largest(self.column, self.columns))
        beside = (BESIDE * _middle(b[self.plain], self.firm_plain), ROUNDING * _middle(q), BESIDE * _middle(P))
        whole = [limit.expand_as(v) for limit, v in zip(beside, (b, q, P), strict=True)]
        # A number in a product is beside the other one of its pair only: a boost takes it to any size.
        product = ROUNDING * (b[self.pairs[0]] + b[self.pairs[1]])
        whole[0] = whole[0].index_copy(0, self.pairs.reshape(-1), product.repeat(2, 1))
        return torch.cat([ROUNDING * least, *whole])

    def _solved(self, weight: Tensor, logs: Tensor) -> Tensor:
        """The u that minimises Σ weight (logs + Mu)², by conjugate gradients on the normal equations."""
        precision = self.squares @ weight
        precision = torch.where(precision > 0, 1.0 / precision, torch.zeros_like(precision))
        left = -(self.MT @ (weight * logs))
        u, direction = torch.zeros_like(left), precision * left
        power = (left * direction).sum(0)
        going = power > 0
        for _ in range(STEPS):
            image = self.MT @ (weight * (self.M @ direction))
            curvature = (direction * image).sum(0)
            length = torch.where(going & (curvature > 0), power / curvature, torch.zeros_like(power))
            step = length * direction
            u, left = u + step, left - length * image
            # Item by item, so that none feels those beside it.
            going = going & (step.abs().amax(0) > SETTLED)
            if u.device.type == "cpu" and not bool(going.any()):
                break
            ahead = precision * left
            before, power = power, (left * ahead).sum(0)
            direction = ahead + torch.where(before > 0, power / before, torch.zeros_like(power)) * direction
        return u


def _balance(program: ConeProgram, device: torch.device) -> _Balance:
    """The least-squares problem of a program, made once."""
    return once(program, ("balance", device), lambda: _Balance(program, device))


def _row_unknowns(program: ConeProgram) -> sp.csr_array:
    """The logarithms of rows as sums of unknown ones: what leaves each cone itself."""
    cones = program.cones
    pieces: list[Any] = [sp.eye_array(cones.zero + cones.nonneg)]
    pieces += [np.ones((size, 1)) for size in cones.soc]
    for order in cones.psd:
        # A congruence dSd with a diagonal d.
        row, column, _ = triangle(order)
        each = np.eye(order)
        pieces.append(each[row] + each[column])
    pieces += [np.ones((3, 1))] * cones.exp
    pieces += [np.array([[1.0, 0.0], [0.0, 1.0], [alpha, 1.0 - alpha]]) for alpha in cones.power]
    return sp.csr_array(sp.block_diag(pieces, format="csr"))


def _products(program: ConeProgram) -> tuple[Int[Tensor, "2 pair"], Int[Tensor, "entry"], Tensor, Tensor]:
    """Cones of (u + v, u - v, w) with a number in one of the three, and those that share columns with them.

    The pairs of rows; entries of A in them, the pair of each, and 1.0 where it belongs to u or -1.0 to v. No column may
    stand in both. Where no number stands in any of them, columns have all the freedom that is needed and a boost is one
    too many: newsvendors under squared moments took 24 steps instead of 12.
    """
    cones, start = program.cones, program.A_indptr.numpy()
    size = np.array(cones.soc, dtype=np.int64)
    head = cones.zero + cones.nonneg + np.cumsum(size) - size
    width = np.diff(start)
    fits = size > 1
    fits[fits] = (width[head[fits]] == width[head[fits] + 1]) & (width[head[fits]] > 0)
    head, size = head[fits], size[fits]
    pair = np.repeat(np.arange(len(head)), width[head])
    within = np.arange(len(pair)) - np.repeat(np.cumsum(width[head]) - width[head], width[head])
    row, column = (t.numpy() for t in program.on(torch.device("cpu"))[:2])
    # Entries by row and column, so that those of one column have one place in both rows.
    order = np.lexsort((column, row))
    one, other = order[start[head][pair] + within], order[start[head + 1][pair] + within]
    A = program.A_map
    terms = sp.csr_array(
        (A.coefficient.numpy(), (A.entry.numpy(), A.column.numpy())), shape=(len(row), program.feature_size)
    )
    numbers = sp.hstack([sp.csr_array(A.constant.numpy()[:, None]), terms], format="csr")
    same, opposite = (abs(numbers[one] + sign * numbers[other]).sum(axis=1) == 0.0 for sign in (-1.0, 1.0))
    good = np.ones(len(head), dtype=bool)
    np.logical_and.at(good, pair, (column[one] == column[other]) & (same | opposite))
    good[good] = _numbered(program, head[good], size[good])
    kept = good[pair]
    which, side = (np.cumsum(good) - 1)[pair[kept]], np.where(same[kept], 1.0, -1.0)
    entries = np.concatenate([one[kept], other[kept]])
    pairs = np.stack([head[good], head[good] + 1])
    return (
        torch.as_tensor(pairs),
        torch.as_tensor(entries),
        torch.as_tensor(np.tile(which, 2)),
        torch.as_tensor(np.tile(side, 2)),
    )


def _numbered(program: ConeProgram, head: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Which of some cones hold a number, or hang on one that does by their columns."""
    number = program.b_map.constant.numpy() != 0.0
    number[program.b_map.entry.numpy()] = True
    inside = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    rows = np.repeat(head, size) + inside
    pattern = sp.csr_array(
        (np.ones(program.nonzeros), program.A_indices.numpy(), program.A_indptr.numpy()),
        shape=(program.rows, program.columns),
    )
    cone = np.repeat(np.arange(len(head)), size)
    member = sp.csr_array((np.ones(len(rows)), (cone, rows)), shape=(len(head), program.rows))
    reach = member @ pattern
    _, label = connected_components(sp.block_array([[None, reach], [reach.T, None]]), directed=False)
    label = label[: len(head)]
    return np.isin(label, label[member @ number > 0])


def _sparse(matrix: sp.csr_array, device: torch.device) -> Tensor:
    """A compressed matrix of torch."""
    matrix = sp.csr_array(matrix)
    start, index = (torch.as_tensor(part.astype(np.int64)) for part in (matrix.indptr, matrix.indices))
    with warnings.catch_warnings():
        # Torch calls these a beta; they are twice as fast as its others.
        warnings.simplefilter("ignore")
        return torch.sparse_csr_tensor(start, index, torch.as_tensor(matrix.data), matrix.shape).to(device)


def _typical(vector: Float[Tensor, "batch entry"], middle: Float[Tensor, "1 batch"]) -> Float[Tensor, "batch 1"]:
    """The geometric mean of every item's entries that are not next to nothing beside the middle one."""
    there = (vector.abs() > BESIDE * middle.T) & vector.isfinite()
    logs = torch.where(there, vector.abs(), torch.ones_like(vector)).log()
    return (logs.sum(1, keepdim=True) / there.sum(1, keepdim=True).clamp(min=1)).exp()


def _middle(vector: Float[Tensor, "entry batch"], firm: Int[Tensor, "row"] | None = None) -> Float[Tensor, "1 batch"]:
    """The median size of what is not zero, the larger one of two; nor what rounding has left of zeros in firm rows."""
    sizes = torch.where(vector.isfinite(), vector.abs(), torch.zeros_like(vector))
    if not len(sizes):
        return sizes.new_zeros(1, sizes.shape[1])
    floor = sizes.new_zeros(1, sizes.shape[1])
    if firm is not None and len(firm):
        floor = ROUNDING * sizes[firm].amax(0, keepdim=True)
    there = torch.where(sizes > floor, -sizes, torch.full_like(sizes, torch.nan))
    return -there.nanmedian(0, keepdim=True).values.nan_to_num()


def _near(
    vector: Float[Tensor, "entry batch"], whole: Bool[Tensor, "batch"], firm: Int[Tensor, "row"] | None = None
) -> Float[Tensor, "entry batch"]:
    """The same without the largest numbers of some items, in rows that are not firm, if all others are far below.

    A median takes bounds and penalties that never bind for the usual numbers where they are as many as these.
    """
    sizes = torch.where(vector.isfinite(), vector.abs(), torch.zeros_like(vector))
    loose = torch.ones(len(sizes), 1, dtype=torch.bool, device=sizes.device)
    if firm is not None:
        loose[firm] = False
    if not len(sizes):
        return vector
    top = (sizes * loose).amax(0, keepdim=True)
    largest = loose & (sizes > BESIDE * top)
    rest = torch.where(largest, torch.zeros_like(sizes), sizes).amax(0)
    far = whole & (rest > 0) & (rest <= BESIDE * top[0])
    return torch.where(largest & far, torch.zeros_like(vector), vector)


def _size(vector: Float[Tensor, "batch entry"]) -> Float[Tensor, "batch 1"]:
    """The largest entry of every item; one where all vanish."""
    largest = vector.abs().amax(1, keepdim=True) if vector.shape[1] else vector.new_zeros(len(vector), 1)
    return torch.where((largest > 0) & largest.isfinite(), largest, torch.ones_like(largest))
