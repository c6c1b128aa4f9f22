"""Builds wheel and sdist and installs each in clean environments: the core alone, then every extra of the library.

Usage: python .ci/install.py [log]

Slow, and it needs a package index, so the tests do not run it (tests/test_release.py builds and looks inside). What it
did goes into the log, benchmarks/install.txt unless given.
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


def build(work: Path, log: Log) -> tuple[Path, Path]:
    """Sdist and wheel, the wheel from the sdist, as an index would have it built."""
    python = environment(work / "build")
    run(python, "-m", "pip", "install", "-q", "build", cwd=work)
    run(python, "-m", "build", "--outdir", work / "dist", ROOT, cwd=work)
    (sdist,), (wheel,) = work.glob("dist/*.tar.gz"), work.glob("dist/*.whl")
    with tarfile.open(sdist) as packed, zipfile.ZipFile(wheel) as zipped:
        log(f"{sdist.name}: {len(packed.getnames())} files, {sdist.stat().st_size // 1024} kB")
        log(f"{wheel.name}: {len(zipped.namelist())} files, {wheel.stat().st_size // 1024} kB")
    return sdist, wheel


def install(work: Path, name: str, what: str, code: str, log: Log) -> None:
    """Install into a clean environment, and use it."""
    folder = work / name.replace(", ", "-").replace(" ", "-")
    start, python = time.monotonic(), environment(folder)
    # An empty folder: nothing of the repository may be imported by chance.
    folder = folder / "used"
    folder.mkdir()
    run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", what, cwd=folder)
    installed = run(python, "-m", "pip", "list", "--format=freeze", cwd=folder).split()
    took = time.monotonic() - start
    log(f"{name}: {len(installed)} packages in {took:.0f} s")
    run(python, "-m", "pip", "check", cwd=folder)
    log("  pip check: no broken requirements")
    log(run(python, "-W", "ignore", "-c", code, cwd=folder).rstrip())
    for names in ("torch, cvxpy, numba, scipy.sparse", "drolayers"):
        # The second time, when all that is compiled is there.
        took = [float(run(python, "-c", IMPORT.format(names), cwd=folder)) for _ in range(2)][1]
        log(f"  import {names}: {took:.2f} s")
    log("  " + ", ".join(installed))


def main() -> int:
    """Build, install four times, write the log."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "benchmarks" / "install.txt"
    log = Log()
    log(f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        sdist, wheel = build(work, log)
        install(work, "wheel, core alone", str(wheel), CORE, log)
        install(work, "wheel, all extras", f"{wheel}[all]", EVERYTHING, log)
        install(work, "sdist, core alone", str(sdist), CORE, log)
        install(work, "sdist, all extras", f"{sdist}[all]", EVERYTHING, log)
    target.write_text("\n".join(log.lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
