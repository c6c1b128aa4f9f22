PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt
BENCHMARKS ?= $(sort $(wildcard benchmarks/*.py))

.PHONY: demo test docs reproduce attack bench format clean

demo: $(STAMP)
	$(BIN)/python -m research demo

# One thread per process: the test workers already fill the cores.
test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy packages/conelayers/src packages/drolayers/src research
	$(BIN)/lint-imports
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

docs: $(STAMP)
	$(INSTALL) -e packages/conelayers -e 'packages/drolayers[docs]'
	OMP_NUM_THREADS=1 NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python docs/check.py site

reproduce: $(STAMP)
	$(BIN)/python -m research reproduce --jobs 2
	$(BIN)/python -m research report

attack: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m research attack

bench: $(STAMP)
	$(INSTALL) -e packages/conelayers -e 'packages/drolayers[bench]'
	set -e; for script in $(BENCHMARKS); do $(BIN)/python $$script; done

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) site packages/*/build packages/*/dist packages/*/src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find packages research tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(STAMP): packages/conelayers/pyproject.toml packages/drolayers/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -e packages/conelayers -e 'packages/drolayers[dev]'
	touch $@
