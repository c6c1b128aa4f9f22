"""Build wheels and sdists of both packages; install them in clean environments: the cores alone, then every extra.

Usage: python .ci/install.py [log]

Slow, and it needs a package index, so the tests do not run it (tests/drolayers/test_release.py builds and looks
inside). What it did goes into the log, benchmarks/install.txt unless given.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("conelayers", "drolayers")

ENGINE = """
import cvxpy as cp, torch
from importlib.util import find_spec
import conelayers

x, price = cp.Variable(2, nonneg=True), cp.Parameter(2)
program = conelayers.compile_program(cp.Problem(cp.Minimize(cp.sum_squares(x) + price @ x), [cp.sum(x) == 1]))
prices = torch.tensor([[0.3, 0.1], [0.0, 0.2]], dtype=torch.float64, requires_grad=True)
solution = conelayers.make_engine().solve(program, prices)
solution.variable(x)[:, 0].sum().backward()
assert solution.ok.all() and prices.grad.abs().sum() > 0
assert find_spec("drolayers") is None
print("  a batch of programs is solved and differentiated; conelayers", conelayers.__version__)
"""

CORE = """
import cvxpy as cp, torch
import drolayers as dro

y, x = dro.Uncertain(2, support=dro.support.Nonnegative()), cp.Variable(2, nonneg=True)
cost = cp.sum(x) + 3 * cp.sum(cp.pos(y - x))
problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
theta = torch.tensor([[1.0, 2.0, 0.5]], dtype=torch.float64, requires_grad=True)
decision = dro.DROLayer(problem)(theta)
decision.value.sum().backward()
assert decision.ok.all() and theta.grad.abs().sum() > 0
try:
    dro.DecisionFocusedLearner
except dro.MissingExtraError as error:
    print(f"  without an extra: {error}")
else:
    raise SystemExit("learning was expected to be missing from the core")
print("  a layer decides and is differentiated; drolayers", dro.__version__)
"""

IMPORT = """
import time
start = time.perf_counter()
import {}
print(time.perf_counter() - start)
"""

EVERYTHING = """
import subprocess, sys
import cvxpy as cp, numpy as np
import drolayers as dro
import drolayers.plot

rng = np.random.default_rng(0)
Z = rng.uniform(size=(40, 2))
Y = 2 + Z + 0.3 * rng.standard_normal((40, 2))
y, x, lots = dro.Uncertain(2), cp.Variable(2, nonneg=True, name="x"), cp.Variable(2, boolean=True, name="lots")
cost = cp.sum(x) + 1.8 * cp.sum(lots) + 4 * cp.sum(cp.pos(y - x - 2 * lots))
problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
short = dro.Stage(epochs=1)
learner = dro.DecisionFocusedLearner(problem, pretraining=short, training=short, trainer=dro.Trainer(progress=False))
learner.fit(Z, Y).save("model")
loaded = dro.DecisionFocusedLearner.load("model", problem)
np.testing.assert_array_equal(loaded.predict(Z), learner.predict(Z))
for oracle in ("scip", "highs"):
    dro.DROLayer(problem, oracle=oracle)
subprocess.run([sys.executable, "-m", "drolayers", "--help"], check=True, stdout=subprocess.DEVNULL)
print("  a learner learns, is saved and loaded; pictures, solvers and the command line are there")
"""


class Log:
    """Says what happens, on the screen and in a file."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        """One line."""
        print(line, flush=True)
        self.lines.append(line)


def run(*command: object, cwd: Path) -> str:
    """What a command prints; its errors where it fails."""
    ended = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{' '.join(map(str, command[:6]))} failed:\n{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}")
    return ended.stdout


def environment(folder: Path) -> Path:
    """A new environment; the path of its Python."""
    venv.create(folder, with_pip=True)
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def build(work: Path, log: Log) -> tuple[list[Path], list[Path]]:
    """Build an sdist of each package, and its wheel from the sdist, as an index would."""
    python = environment(work / "build")
    run(python, "-m", "pip", "install", "-q", "build", cwd=work)
    for package in PACKAGES:
        run(python, "-m", "build", "--outdir", work / "dist", ROOT / "packages" / package, cwd=work)
    sdists, wheels = sorted(work.glob("dist/*.tar.gz")), sorted(work.glob("dist/*.whl"))
    for sdist, wheel in zip(sdists, wheels, strict=True):
        with tarfile.open(sdist) as packed, zipfile.ZipFile(wheel) as zipped:
            log(f"{sdist.name}: {len(packed.getnames())} files, {sdist.stat().st_size // 1024} kB")
            log(f"{wheel.name}: {len(zipped.namelist())} files, {wheel.stat().st_size // 1024} kB")
    return sdists, wheels


def install(work: Path, name: str, what: list[str], code: str, log: Log) -> None:
    """Install into a clean environment, and use it."""
    folder = work / name.replace(", ", "-").replace(" ", "-")
    start, python = time.monotonic(), environment(folder)
    # An empty folder: nothing of the repository may be imported by chance.
    folder = folder / "used"
    folder.mkdir()
    run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", *what, cwd=folder)
    installed = run(python, "-m", "pip", "list", "--format=freeze", cwd=folder).split()
    took = time.monotonic() - start
    log(f"{name}: {len(installed)} packages in {took:.0f} s")
    run(python, "-m", "pip", "check", cwd=folder)
    log("  pip check: no broken requirements")
    log(run(python, "-W", "ignore", "-c", code, cwd=folder).rstrip())
    for names in ("torch, cvxpy, numba, scipy.sparse", PACKAGES[len(what) - 1]):
        # The second time, when all that is compiled is there.
        took = [float(run(python, "-c", IMPORT.format(names), cwd=folder)) for _ in range(2)][1]
        log(f"  import {names}: {took:.2f} s")
    log("  " + ", ".join(installed))


def main() -> int:
    """Build, install five times, write the log."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "benchmarks" / "install.txt"
    log = Log()
    log(f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        kinds = dict(zip(("sdist", "wheel"), build(work, log), strict=True))
        install(work, "wheel, engine alone", [str(kinds["wheel"][0])], ENGINE, log)
        for kind in ("wheel", "sdist"):
            engine, robust = map(str, kinds[kind])
            install(work, f"{kind}, core alone", [engine, robust], CORE, log)
            install(work, f"{kind}, all extras", [engine, f"{robust}[all]"], EVERYTHING, log)
    target.write_text("\n".join(log.lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
