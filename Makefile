# Everything on a fresh machine:
#   make demo    set up, train on built-in data, print a table
#   make check   set up, run the quick checks (under two minutes)
#   make test    set up, run every check
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# a file of tests is one process's, so that what its tests share is made once
PYTEST := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo check test lint soak mutants audit setup format clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/derts demo

lint: $(READY)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

check: lint
	$(PYTEST) -m "not slow"

test: lint
	$(PYTEST)

# what takes too long for every test run: about ten minutes; the figures are committed
soak: $(READY)
	$(BIN)/python benchmarks/soak_memory.py results/soak-memory-cpu.json
	$(BIN)/python benchmarks/soak_kill.py results/soak-kill-cpu.json
	$(BIN)/python benchmarks/two_rounds.py results/soak-two-rounds-cpu.json
	$(BIN)/python benchmarks/soak_fuzz.py results/soak-fuzz-cpu.json

# small faults, each planted alone: do the tests see it? about ten minutes
mutants: $(READY)
	$(BIN)/python tests/mutants/run.py results/mutants.json

# needs the network
audit: $(READY)
	$(PYTHON) -m venv .audit && .audit/bin/python -m pip install --quiet pip-audit
	.audit/bin/pip-audit --strict --no-deps --disable-pip -r constraints.txt
	rm -rf .audit

format: $(READY)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
