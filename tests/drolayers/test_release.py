"""What is released: wheels and sdists hold one package each and nothing else, and can be imported from there.

Clean environments with everything installed are .ci/install.py's, which is slow; its log is benchmarks/install.txt.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest
import yaml

import conelayers.internals
import drolayers as dro

ROOT = Path(__file__).parents[2]
PACKAGES = ("conelayers", "drolayers")
PROJECTS = {
    name: tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text("utf-8"))["project"]
    for name in PACKAGES
}
BUILD = "import sys, setuptools.build_meta as b; to = sys.argv[1]; b.build_sdist(to); b.build_wheel(to)"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheels and sdists of copies of both packages, which building must not litter."""
    dist = tmp_path_factory.mktemp("dist")
    for name in PACKAGES:
        copy = tmp_path_factory.mktemp("copy") / name
        shutil.copytree(ROOT / "packages" / name, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        ended = subprocess.run(
            [sys.executable, "-c", BUILD, str(dist)], cwd=copy, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
    return dist


def metadata(built: Path, name: str) -> tuple[list[str], Message]:
    (wheel,) = built.glob(f"{name}-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        text = packed.read(f"{name}-{dro.__version__}.dist-info/METADATA").decode()
    return names, message_from_string(text)


def unpacked(built: Path, name: str, folder: Path) -> None:
    """A wheel of Python alone is installed by unpacking it."""
    (wheel,) = built.glob(f"{name}-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)


def run(code: str, folder: Path) -> str:
    """What code prints where the packages are those of a folder, if there at all."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("name", PACKAGES)
def test_the_wheel_holds_the_package_and_nothing_else(built: Path, name: str) -> None:
    names, _ = metadata(built, name)
    library = {file for file in names if ".dist-info/" not in file}
    source = ROOT / "packages" / name / "src"
    assert library == {
        path.relative_to(source).as_posix()
        for path in (source / name).rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }
    assert f"{name}-{dro.__version__}.dist-info/licenses/LICENSE" in names


@pytest.mark.parametrize("name", PACKAGES)
def test_its_metadata(built: Path, name: str) -> None:
    _, found = metadata(built, name)
    project = PROJECTS[name]
    assert found["Version"] == dro.__version__ == conelayers.__version__ == project["version"]
    assert found["License-Expression"] == "Apache-2.0"
    assert found["Requires-Python"] == ">=3.11"
    assert set(found.get_all("Provides-Extra") or ()) == set(project["optional-dependencies"])
    core = [need for need in found.get_all("Requires-Dist") or () if "extra ==" not in need]
    assert len(core) == len(project["dependencies"])
    assert not [need for need in core if re.match(r"lightning|scikit|typer|matplotlib", need)]
    assert f"# {name}" in str(found.get_payload())
    assert (f"conelayers=={dro.__version__}" in core) == (name == "drolayers")


@pytest.mark.parametrize("name", PACKAGES)
def test_the_sdist_can_be_built_from(built: Path, name: str) -> None:
    (sdist,) = built.glob(f"{name}-*.tar.gz")
    with tarfile.open(sdist) as packed:
        names = {file.partition("/")[2] for file in packed.getnames()}
    assert names >= {"pyproject.toml", "README.md", "LICENSE", f"src/{name}/__init__.py", f"src/{name}/errors.py"}


def test_both_are_imported_from_where_they_are_installed(built: Path, tmp_path: Path) -> None:
    for name in PACKAGES:
        unpacked(built, name, tmp_path)
    code = "import conelayers, drolayers as dro; dro.DROLayer; dro.DecisionFocusedLearner; conelayers.Engine\n"
    files = run(code + "print(dro.__file__, conelayers.__file__, dro.__version__)", tmp_path).split()
    assert all(Path(file).is_relative_to(tmp_path) for file in files[:2])
    assert files[2] == dro.__version__


ALONE = """
import sys
from pathlib import Path

sys.modules["drolayers"] = None
import conelayers

assert Path(conelayers.__file__).is_relative_to(Path.cwd())
from importlib import import_module
for path in sorted(Path("conelayers").rglob("*.py")):
    import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
for name in conelayers.__all__:
    getattr(conelayers, name)
for name in dir(conelayers.internals):
    getattr(conelayers.internals, name)

import cvxpy as cp
import torch

x, price = cp.Variable(3, nonneg=True), cp.Parameter(3)
problem = cp.Problem(cp.Minimize(cp.sum_squares(x) + price @ x), [cp.sum(x) == 1])
program = conelayers.compile_program(problem)
prices = torch.tensor([[0.1, 0.2, 0.3], [0.3, -0.1, 0.0]], dtype=torch.float64, requires_grad=True)
solution = conelayers.make_engine("torch").solve(program, prices)
found = solution.variable(x)
# The projection of -price / 2 onto the simplex, here without an active bound.
expected = -prices / 2 + (1 + prices.sum(1, keepdim=True) / 2) / 3
torch.testing.assert_close(found, expected)
(ours,) = torch.autograd.grad(found[:, 0].sum(), prices)
(exact,) = torch.autograd.grad(expected[:, 0].sum(), prices)
torch.testing.assert_close(ours, exact)
print("solved", *solution.statuses)
"""


def test_the_engine_works_alone(built: Path, tmp_path: Path) -> None:
    """Every module is imported, and a batch solved and differentiated, where drolayers cannot be imported."""
    unpacked(built, "conelayers", tmp_path)
    assert run(ALONE, tmp_path).split() == ["solved", "OPTIMAL", "OPTIMAL"]


def test_the_engine_does_not_speak_of_the_package_above_it() -> None:
    files = [path for path in (ROOT / "packages" / "conelayers").rglob("*") if path.is_file()]
    texts = {path: path.read_text("utf-8") for path in files if path.suffix in (".py", ".md", ".toml")}
    assert len(texts) > 50
    assert not [path for path, text in texts.items() if "drolayers" in text.lower()]


def test_the_engine_has_few_public_names() -> None:
    assert len(conelayers.__all__) <= 14
    assert all(getattr(conelayers, name).__name__ == name for name in conelayers.__all__)


def test_internals_hold_what_drolayers_uses_and_nothing_else() -> None:
    used: set[str] = set()
    for path in (ROOT / "packages" / "drolayers" / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "conelayers.internals":
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "internals":
                used.add(node.attr)
    assert used == set(conelayers.internals.__all__) == set(dir(conelayers.internals))


def test_files_that_a_stranger_looks_for() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == dro.__version__
    assert {project["license"] for project in PROJECTS.values()} == {citation["license"]}
    assert "report" in (ROOT / "SECURITY.md").read_text("utf-8")
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text("utf-8"))
        assert "body" in form or "blank_issues_enabled" in form
    tests = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8"))
    matrix = tests["jobs"]["tests"]["strategy"]["matrix"]
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert {system.partition("-")[0] for system in matrix["system"]} == {"ubuntu", "macos", "windows"}
    log = (ROOT / "benchmarks" / "install.txt").read_text("utf-8")
    for what in (
        "wheel, core alone",
        "wheel, all extras",
        "sdist, core alone",
        "sdist, all extras",
        f"drolayers-{dro.__version__}",
    ):
        assert what in log


def test_the_workflow_of_the_pages_sets_what_they_are_built_with() -> None:
    read = set(re.findall(r"!ENV \[?(\w+)", (ROOT / "mkdocs.yml").read_text("utf-8")))
    assert len(read) == 3
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "docs.yml").read_text("utf-8"))
    (job,) = workflow["jobs"].values()
    assert {name for name in job["env"] if name.startswith("DOCS_")} == read
    assert all("uses" in step or "run" in step for step in job["steps"])
    steps = "\n".join(step.get("run", "") for step in job["steps"])
    extras = set(re.findall(r"-e packages/conelayers -e 'packages/drolayers\[([\w,]+)\]'", steps)[0].split(","))
    assert {"all", "docs"} <= extras <= set(PROJECTS["drolayers"]["optional-dependencies"])


def test_the_workflow_takes_moreau_out_of_what_is_required() -> None:
    """Its command must find the line that it deletes."""
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8")
    (pattern, path) = re.findall(r"sed -i\.bak '/(.*)/d' (\S+)", workflow)[0]
    assert any(pattern in line for line in (ROOT / path).read_text("utf-8").splitlines())
