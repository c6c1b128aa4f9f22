"""The Python blocks of the package's README run, in order, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

README = Path(__file__).parents[2] / "packages" / "conelayers" / "README.md"


def test_the_readme_runs() -> None:
    torch.manual_seed(0)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert names["prices"].grad.isfinite().all()
    assert (names["prices"].grad != 0).any()
    assert names["values"].grad.isfinite().all()
    assert names["result"].ok.all()
