"""Commit power stations for tomorrow's load, measured in Victoria in 2014: robust sets against sample averages."""

import argparse
from pathlib import Path

from drolayers.studies.energy import Settings, run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run that shows that everything works")
    parser.add_argument("--part", choices=("development", "test"), help="the weeks; quick runs default to development")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    parser.add_argument("--out", type=Path, default=Path("runs/studies/energy"))
    arguments = parser.parse_args()
    part = arguments.part or ("development" if arguments.quick else "test")
    settings = Settings.quick() if arguments.quick else Settings()
    run(settings, arguments.out / "quick" if arguments.quick else arguments.out, part, arguments.jobs)
