"""One whole training step by stage, beside the paper's pipeline in the same run; on a GPU beside Moreau's back end.

    python benchmarks/step.py                    100, 200, 400, 800 assets, each asset its own bound and in fours; CPU
    python benchmarks/step.py --peer 100 800     sizes at which the paper's pipeline is run (a few items, scaled up)
    python benchmarks/step.py --device cuda      on a GPU, beside Moreau's CUDA back end where that is installed
    python benchmarks/step.py --plot step.png --files benchmarks/step-cpu.json benchmarks/step-h200.json

A step is the paper's: learning layer, projection layer, T = 3 best integer decisions, the DRO layer at S = 4 points,
and the backward pass, for a batch of 100 portfolios of which a fifth of the assets come in lots. The peer is
cvxpylayers with its default solver and SCIP (see paper_pipeline.py); it is given a few items, and its time is scaled up
to 100. A call of SCIP is cut off after --limit seconds, which only flatters the peer; rows where that happened are
marked with >. Wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from drolayers.learning.pipeline import STAGES
from research.experiments.step import Step, StepTime, growth

BATCH, CANDIDATES, SAMPLES = 100, 3, 4


def peer_seconds(step: Step, items: int, limit: float) -> dict[str, float]:
    """The paper's pipeline on a few items of the first batch, scaled up to the batch."""
    from paper_pipeline import Stopwatch, run_paper_pipeline

    watch = Stopwatch()
    with torch.no_grad():
        rows = torch.arange(items)
        raw, (atoms, _) = step.pipeline.model(step.Z[rows]), step.pipeline.nominal(step.Z[rows], exclude=rows)
    run_paper_pipeline(
        raw,
        atoms,
        step.Y[:items],
        watch,
        group=step.group,
        candidates=CANDIDATES,
        samples=SAMPLES,
        time_limit=limit,
    )
    return {name: seconds * BATCH / items for name, seconds in watch.seconds.items()}


def show(name: str, group: int, assets: int, seconds: dict[str, float], note: str = "") -> None:
    """One line of the table."""
    stages = " ".join(f"{seconds[stage]:10.4f}" for stage in STAGES)
    print(f"{assets:6d} {assets // group:6d}  {name:18s} {stages} {sum(seconds.values()):10.3f}  {note}", flush=True)


def plot(path: Path, files: list[Path]) -> None:
    """Times by number of assets, on logarithmic axes, from what earlier runs wrote."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    axes = figure.subplots()
    lines: dict[tuple[str, str, int], list[tuple[int, float]]] = {}
    for file in files:
        found = json.loads(file.read_text())
        for row in found["rows"]:
            line = lines.setdefault((found["machine"], row["name"], row["group"]), [])
            line.append((row["assets"], sum(row["seconds"].values())))
    for (machine, name, group), points in sorted(lines.items(), key=lambda item: -item[1][-1][1]):
        bounds = "a bound for every asset" if group == 1 else f"a bound for every {group} assets"
        peer = name != "drolayers"
        axes.plot(*zip(*points, strict=True), "s--" if peer else "o-", lw=1.2, label=f"{name}, {bounds}; {machine}")
    axes.set(xscale="log", yscale="log", xlabel="assets", ylabel="seconds a training step, batch of 100")
    axes.set_xticks([100, 200, 400, 800], ["100", "200", "400", "800"])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(0.0, 0.44))
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure, print, plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--assets", type=int, nargs="+", default=[100, 200, 400, 800])
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=None, help="of torch and of the compiled solver")
    parser.add_argument("--peer", type=int, nargs="*", default=[], help="sizes at which the peer is run")
    parser.add_argument("--items", type=int, default=2, help="items that the peer is given")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for a call of SCIP")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=BATCH, help="items of a step; the peer is scaled up to 100")
    parser.add_argument("--engines", nargs="+", help="of the layer; ours first")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--plot", type=Path, help="picture to draw of the files given with --files")
    parser.add_argument("--files", type=Path, nargs="+", help="results of earlier runs; nothing is measured then")
    arguments = parser.parse_args()
    if arguments.files:
        plot(arguments.plot or Path("step.png"), arguments.files)
        return
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    usual = ["auto"] if arguments.device == "cpu" else ["batched", "moreau"]
    engines: list[str] = arguments.engines or usual
    print(f"Seconds for a batch of {arguments.batch}, T = 3, S = 4, smoothed gradients.\n")
    print(f"assets bounds  {'':18s} " + " ".join(f"{name:>10s}" for name in STAGES) + f" {'all':>10s}")
    found: dict[str, list[StepTime]] = {}
    rows: list[dict[str, Any]] = []
    for group in arguments.groups:
        for assets in arguments.assets:
            own = None
            for engine in engines:
                try:
                    step = Step(assets, group, batch=arguments.batch, device=arguments.device, engine=engine)
                    measured = step.measure(arguments.steps)
                except Exception as error:  # a peer that is missing or fails is a line of the table
                    print(f"{assets:6d} {assets // group:6d}  {engine}: {str(error).splitlines()[0]}")
                    continue
                own = own or measured
                name = "drolayers" if engine in ("auto", "batched") else f"with {engine}"
                note = f"{measured.memory / 1e9:.2f} GB, {measured.masked} masked"
                show(name, group, assets, measured.seconds, note)
                rows.append({"name": name, "assets": assets, "group": group, "seconds": measured.seconds})
                if own is measured:
                    label = "each asset its bound" if group == 1 else f"bounds for groups of {group}"
                    found.setdefault(label, []).append(measured)
            if assets in arguments.peer and own is not None:
                seconds = peer_seconds(step, arguments.items, arguments.limit)
                cut = seconds["integer"] / BATCH > 0.99 * arguments.limit
                ratio = sum(seconds.values()) / own.total
                show("paper's pipeline", group, assets, seconds, f"{'>' if cut else ''}{ratio:,.0f}x ours")
                name = "cvxpylayers and SCIP (scaled up)"
                rows.append({"name": name, "assets": assets, "group": group, "seconds": seconds})
    print()
    for label, times in found.items():
        if len(times) > 1:
            print(f"Growth from {times[0].assets} to {times[-1].assets}, {label}: n^{growth(times[0], times[-1]):.2f}")
    if arguments.json is not None:
        machine = torch.cuda.get_device_name() if arguments.device == "cuda" else f"{os.cpu_count()} cores"
        arguments.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
