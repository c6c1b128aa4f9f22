"""What is released: wheel and sdist hold the library and nothing else, and can be imported from there.

Clean environments with everything installed are .ci/install.py's, which is slow; its log is benchmarks/install.txt.
"""

from __future__ import annotations

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

import drolayers as dro

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
BUILD = "import sys, setuptools.build_meta as b; to = sys.argv[1]; b.build_sdist(to); b.build_wheel(to)"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel and sdist of a copy of the repository, which building must not litter."""
    copy, dist = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("dist")
    for name in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "MANIFEST.in",
        "CHANGELOG.md",
        "CITATION.cff",
        "SECURITY.md",
    ):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src" / "drolayers", copy / "src" / "drolayers")
    ended = subprocess.run(
        [sys.executable, "-c", BUILD, str(dist)], cwd=copy, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return dist


def metadata(built: Path) -> tuple[list[str], Message]:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        text = packed.read(f"drolayers-{dro.__version__}.dist-info/METADATA").decode()
    return names, message_from_string(text)


def test_the_wheel_holds_the_library_and_nothing_else(built: Path) -> None:
    names, _ = metadata(built)
    library = {name for name in names if ".dist-info/" not in name}
    source = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "drolayers").rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }
    assert library == source
    assert f"drolayers-{dro.__version__}.dist-info/licenses/LICENSE" in names


def test_its_metadata(built: Path) -> None:
    _, found = metadata(built)
    assert found["Version"] == dro.__version__ == PROJECT["version"]
    assert found["License-Expression"] == "Apache-2.0"
    assert found["Requires-Python"] == ">=3.11"
    assert set(found.get_all("Provides-Extra") or ()) == set(PROJECT["optional-dependencies"])
    core = [need for need in found.get_all("Requires-Dist") or () if "extra ==" not in need]
    assert len(core) == len(PROJECT["dependencies"])
    assert not [need for need in core if re.match(r"lightning|scikit|typer|matplotlib", need)]
    assert "# drolayers" in str(found.get_payload())


def test_the_sdist_can_be_built_from(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert names >= {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "src/drolayers/layer.py"}


def test_it_is_imported_from_where_it_is_installed(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    # A wheel of Python alone is installed by unpacking it.
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path)
    code = "import drolayers as dro; dro.DROLayer; dro.DecisionFocusedLearner; print(dro.__file__, dro.__version__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    file, version = ended.stdout.split()
    assert Path(file).is_relative_to(tmp_path)
    assert version == dro.__version__


def test_files_that_a_stranger_looks_for() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == dro.__version__
    assert citation["license"] == PROJECT["license"]
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
    extras = set(re.findall(r"-e '\.\[([\w,]+)\]'", steps)[0].split(","))
    assert {"all", "docs"} <= extras <= set(PROJECT["optional-dependencies"])
