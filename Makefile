# `make` lists the commands. Every one sets up what it needs in .venv on a bare machine with Python 3.11;
# the tests start Flink and Spark, and need Java 17 and Maven beside it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Beam's job servers: started by the tests that use them, and stopped.
FLINK := build/job_servers/flink.jar
SPARK := build/job_servers/spark.jar
# Two cores share the work of the test suite; BLAS threads on top of that would only fight over them.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow trust runners test-runners check format docs bench clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

setup: $(READY) ## install truebatch and its tools into .venv

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("truebatch needs Python 3.11 or newer, not " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[all,dev]'
	@touch $@

demo: $(READY) ## train on real data with a guarantee; the noise every sampler needs; the paper's sigma curves
	$(BIN)/truebatch calibrate --examples 36672493 --batch-size 65536 --epochs 1 --epsilon 5 --delta 2.7e-8
	$(BIN)/truebatch figure all --out out/figures
	$(BIN)/truebatch demo --out out/demo

test: $(READY) $(FLINK) ## the whole default suite: format, lint, types, imports, tests, doctests, docs
	$(MAKE) check
	$(BIN)/python -m pytest --quiet --numprocesses 2

test-slow: $(READY) $(SPARK) ## the tests that take minutes
	$(BIN)/python -m pytest --quiet --numprocesses 2 -m slow

trust: $(READY) ## break the guarantee in every way we know of, and see that it is noticed: some minutes
	PYTHONPATH=tests:tests/support $(BIN)/python -m trust --write

runners: $(FLINK) $(SPARK) ## fetch Beam's job servers for Flink and Spark: needs Java 17 and Maven

build/job_servers/%.jar: scripts/job_servers/%/pom.xml scripts/fetch_job_server.py
	$(PYTHON) scripts/fetch_job_server.py $*

test-runners: $(READY) $(FLINK) $(SPARK) ## the Beam and Spark engines alone, on every runner there is
	$(BIN)/python -m pytest --quiet -m "slow or not slow" tests/conformance/test_beam.py \
	    tests/conformance/test_job_servers.py tests/conformance/test_spark.py

check: $(READY) ## format, lint, types and imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## put the code in shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY) ## write docs/reference anew from the code
	$(BIN)/python scripts/write_reference.py

bench: $(READY) ## the timed cases; see benchmarks/README.md for what each needs
	$(BIN)/python benchmarks/accounting.py --quick

clean: ## remove .venv, job servers and what the tools left
	rm -rf $(VENV) out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
