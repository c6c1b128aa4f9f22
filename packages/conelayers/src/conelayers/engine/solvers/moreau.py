"""Moreau, a batched interior-point solver of others, for cones that ours does not know.

Used directly and not through cvxpylayers 1.2, whose Moreau back end drops the identity rows that CVXPY moves aside and
returns a wrong optimum on our programs.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from conelayers.engine.solution import WarmStart
from conelayers.engine.solvers.contract import Capabilities, Points, panicked
from conelayers.errors import MissingExtraError
from conelayers.program.program import EVERY_CONE, ConeProgram, Values, copy_array
from conelayers.status import Status

# Moreau's statuses by number; what is absent is unfinished.
_VERDICTS = {1: Status.OPTIMAL, 2: Status.INFEASIBLE, 3: Status.UNBOUNDED, 5: Status.INFEASIBLE, 6: Status.UNBOUNDED}


class SolverPool:
    """Solver objects that are costly to build, by program and purpose; the least recently used are dropped."""

    def __init__(self, size: int = 16) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._solvers: WeakKeyDictionary[ConeProgram, OrderedDict[Any, tuple[Any, Any]]] = WeakKeyDictionary()
        self._asked: WeakKeyDictionary[ConeProgram, Counter[int]] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[Any, ...]:
        return SolverPool, (self._size,)

    def get(self, program: ConeProgram, key: Any, build: Callable[[], Any]) -> tuple[Any, Any]:
        """The solver for a purpose and the lock under which it is used."""
        with self._lock:
            known = self._solvers.setdefault(program, OrderedDict())
            if key not in known:
                known[key] = (build(), threading.Lock())
            known.move_to_end(key)
            while len(known) > self._size:
                known.popitem(last=False)
            return known[key]

    def drop(self, program: ConeProgram, key: Any) -> None:
        """Forget the solver for a purpose."""
        with self._lock:
            self._solvers[program].pop(key, None)

    def batch_size(self, program: ConeProgram, items: int) -> int:
        """The size to pad a batch to.

        A new size costs a rebuild, so sizes are rounded up to 1, 2, 3, 4, 6, 8, 12, 16, 24 …; one that is met for the
        third time (the batch size of a training run, say) earns a solver of its own.
        """
        with self._lock:
            asked = self._asked.setdefault(program, Counter())
            asked[items] += 1
            if asked[items] > 2:
                return items
        power = 1 << max(items - 1, 0).bit_length()
        return power * 3 // 4 if power >= 4 and items <= power * 3 // 4 else power


@final
@dataclass(frozen=True, eq=False)
class Moreau:
    """Moreau's interior-point method, on the CPU or, where its CUDA wheel is installed, on the GPU.

    Its own derivatives are not used: exact ones were off on degenerate items, smoothed ones wrong on linear programs.

    Args:
        tolerance: for feasibility and gap, on scaled data.
        max_iter: iterations before an item is handed to the second route.
    """

    tolerance: float = 1e-10
    max_iter: int = 100
    name: str = "moreau"
    capabilities: ClassVar[Capabilities] = Capabilities(EVERY_CONE, fixed_sizes=True)
    _pool: SolverPool = field(default_factory=SolverPool, repr=False)

    def solve(
        self, program: ConeProgram, values: Values, warm_start: WarmStart | None = None, level: float | None = None
    ) -> Points:
        """Pad the batch, solve it, cut it."""
        items, device = len(values.q), values.q.device
        size = self._pool.batch_size(program, items)
        target = torch.device("cuda" if device.type == "cuda" and _cuda() else "cpu")
        # A fixed quadratic form still differs between items once it is scaled.
        varies = program.A_map.varies or program.P_map.varies
        shared = not varies and all(M.stride(0) == 0 or M.shape[1] == 0 for M in (values.P, values.A))

        def padded(tensor: Tensor) -> Tensor:
            tensor = tensor.detach().to(target)
            return tensor if size == items else torch.cat([tensor, tensor[-1:].expand(size - items, -1)])

        P, A = ((M[0].detach().to(target) if shared else padded(M)).contiguous() for M in (values.P, values.A))
        data = (P, A, padded(values.q).contiguous(), padded(values.b).contiguous())
        # Whether matrices are shared belongs to the key: one solver object refuses to alternate.
        key = (size, target.type, shared, self.tolerance, self.max_iter)
        solver, lock = self._pool.get(program, key, lambda: self._build(program, size, target.type))
        warm = None if warm_start is None else _warm(warm_start, padded)
        with lock, warnings.catch_warnings():
            # A warm start that leads nowhere is retried cold by Moreau itself, which says so.
            warnings.simplefilter("ignore")
            try:
                x, z, s, codes, iterations = _run(solver, data, warm)
            except BaseException as error:
                if not panicked(error):
                    raise
                # The second route takes the items one by one, so that one does not stand for the others.
                self._pool.drop(program, key)
                return Points.none(values)
        # On CUDA a batch of one comes back without its dimension.
        codes, iterations = torch.atleast_1d(codes)[:items], torch.atleast_1d(iterations)
        verdict = torch.full_like(codes, int(Status.FAILED))
        for code, status in _VERDICTS.items():
            verdict[codes == code] = int(status)
        x, z, s = (t[:items].detach().to(device) for t in (x, z, s))
        return Points(x, z, s, verdict.to(device), iterations[:items].to(device))

    def with_tolerance(self, tolerance: float) -> Moreau:
        """The same solver, asked for another accuracy."""
        return replace(self, tolerance=tolerance)

    def _build(self, program: ConeProgram, size: int, device: str) -> Any:
        """A solver object of fixed structure and batch size."""
        moreau = _import()
        cones = moreau.Cones(
            num_zero_cones=program.cones.zero,
            num_nonneg_cones=program.cones.nonneg,
            so_cone_dims=list(program.cones.soc),
            psd_dims=list(program.cones.psd),
            num_exp_cones=program.cones.exp,
            power_alphas=list(program.cones.power),
        )
        tolerance = self.tolerance
        ipm = moreau.IPMSettings(tol_gap_abs=tolerance, tol_gap_rel=tolerance, tol_feas=tolerance)
        settings = moreau.Settings(
            solver="ipm",
            device=device,
            batch_size=size,
            enable_grad=False,
            max_iter=self.max_iter,
            ipm_settings=ipm,
        )
        pattern = (program.P_indptr, program.P_indices, program.A_indptr, program.A_indices)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if device == "cpu":
                # The plain solver is about 30 % faster than the torch one.
                arrays = [copy_array(t) for t in pattern]
                return moreau.CompiledSolver(program.columns, program.rows, *arrays, cones, settings)
            import moreau.torch as moreau_torch

            return moreau_torch.Solver(program.columns, program.rows, *pattern, cones, settings)


def _run(solver: Any, data: tuple[Tensor, ...], warm: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """One call of Moreau."""
    P, A, q, b = data
    if q.device.type == "cpu":
        solver.setup(P.numpy(), A.numpy())
        found = solver.solve(q.numpy(), b.numpy(), warm_start=warm)
        x, z, s = (torch.from_numpy(a) for a in (found.x, found.z, found.s))
    else:
        with torch.no_grad():
            found = solver.solve(P, A, q, b, warm_start=warm)
        x, z, s = found.x, found.z, found.s
    codes = torch.tensor([int(code) for code in solver.info.status])
    iterations = torch.as_tensor(solver.info.iterations).to("cpu", torch.int64)
    return x, z, s, codes, iterations


def _warm(warm_start: WarmStart, padded: Callable[[Tensor], Tensor]) -> Any:
    """A warm start in Moreau's form; items without one begin at zero."""
    moreau = _import()
    x, z, s = (
        padded(t.double().nan_to_num()).cpu().numpy() for t in (warm_start.primal, warm_start.dual, warm_start.slack)
    )
    return moreau.BatchedWarmStart(x=x, z=z, s=s)


def _import() -> Any:
    """Moreau, or a sentence on how to get it."""
    try:
        import moreau
    except ImportError as error:
        raise MissingExtraError(
            "Moreau is not installed (it has no wheel for every platform): install it, or use engine='auto'."
        ) from error
    return moreau


def _cuda() -> bool:
    """Whether Moreau can solve on the GPU."""
    return bool(_import().device_available("cuda"))
