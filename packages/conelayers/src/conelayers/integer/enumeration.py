"""Every integer point of the box, solved: for small sets, and as the reference of all other oracles."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from conelayers.engine.engine import Engine
from conelayers.engine.registry import default_engine
from conelayers.errors import ModelError
from conelayers.integer.boxes import Boxes
from conelayers.integer.feasibility import Screen
from conelayers.integer.oracle import Candidates
from conelayers.integer.pool import Slots
from conelayers.program.program import ConeProgram, Values
from conelayers.status import Status


@dataclass(frozen=True, eq=False)
class Enumeration:
    """Solve at every integer point that arithmetic does not exclude.

    Args:
        engine: solves the programs at fixed points.
        limit: refuse boxes with more integer points than this.
        memory: bytes that one call of the engine may take.
    """

    engine: Engine = field(default_factory=default_engine)
    limit: int = 65_536
    memory: float = 1e9
    name: str = "enumeration"

    def best(self, program: ConeProgram, values: Values, count: int) -> Candidates:
        """The ``count`` best integer points of every program."""
        box, pool = torch.from_numpy(all_points(program, self.limit)), Slots(program, values, count)
        usable, box = pool.good.nonzero()[:, 0], box.to(pool.good.device)
        screen, boxes = Screen.of(program, pool.values), Boxes(self.engine, program, pool.values, self.memory)
        failed, unbounded = torch.zeros_like(pool.good), torch.zeros_like(pool.good)
        rounds = relaxations = 0
        # Points are combined with items piece by piece, so that neither product is ever held at once.
        per_piece = max(1, 16 * boxes.chunk // max(1, len(usable)))
        for at in range(0, box.shape[0], per_piece):
            piece = box[at : at + per_piece]
            item, points = usable.repeat_interleave(len(piece)), piece.repeat(len(usable), 1)
            kept = screen.passes(item, points)
            item, points = item[kept], points[kept]
            for cut in boxes.chunks(len(item)):
                solved = boxes.solve(item[cut], points[cut], points[cut])
                failed[item[cut][solved.status == int(Status.FAILED)]] = True
                unbounded[item[cut][solved.status == int(Status.UNBOUNDED)]] = True
                pool.offer(item[cut], points[cut], solved)
                rounds, relaxations = rounds + 1, relaxations + len(solved.status)
        found = pool.found > 0
        status = torch.where(found, int(Status.OPTIMAL), int(Status.INFEASIBLE))
        status = torch.where(failed, torch.where(found, int(Status.INACCURATE), int(Status.FAILED)), status)
        status = torch.where(unbounded, int(Status.UNBOUNDED), status)
        status = torch.where(pool.good, status, int(Status.FAILED))
        gap = torch.where(status == int(Status.OPTIMAL), 0.0, torch.inf).double()
        nodes = torch.where(pool.good, len(box), 0)
        return pool.candidates(self.name, status, gap, nodes, rounds, relaxations)


def box_size(program: ConeProgram) -> float:
    """Number of integer points of the compiled box."""
    lower, upper = (end.numpy() for end in program.integer_bounds)
    with np.errstate(over="ignore"):
        return float(np.prod(np.maximum(upper - lower + 1.0, 0.0)))


def all_points(program: ConeProgram, limit: int) -> np.ndarray:
    """The integer points of the box, in lexicographic order."""
    size = box_size(program)
    if size > limit:
        raise ModelError(
            f"The box holds {size:.3g} integer points, more than the {limit} that enumeration accepts: "
            "use oracle='branch_and_bound'."
        )
    lower, upper = (end.numpy() for end in program.integer_bounds)
    axes = [np.arange(lo, hi + 1) for lo, hi in zip(lower, upper, strict=True)]
    if not axes:
        return np.zeros((1, 0))
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))
