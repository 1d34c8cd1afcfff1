# The two commands: `make bench` and `make test`. PYTHON chooses the interpreter, CORES the cores of the workflow.
# make suite SUITE=aa runs workflows/suites/aa.yaml; make test-networks compiles and compares every network of the suite;
# make test-emulated runs generated CUDA code on the emulator, every scheduler mode, all planted faults; make test-mutants
# has the verifier judge thousands of mutated Programs; make test-backend compiles and runs all of ONNX's single-operator
# tests; make test-slow runs what takes a quarter of a minute and more each; make fuzz has the compiler judge MODELS
# damaged models; make docs builds the documentation site in build/site.
SHELL := /bin/bash
PYTHON ?= python3
CORES ?= all
CONFIG ?= workflows/config.yaml
MODELS ?= 20000
BIN := .venv/bin
# Where an environment says so, each process would compile all that it imports again, PyTorch and transformers too.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile --retries 1 --timeout 20
TIMED = started=$$SECONDS; trap 'echo "installation: $$((SECONDS - started)) s ($@)"' EXIT;

.PHONY: bench suite test test-networks test-emulated test-mutants test-backend test-slow fuzz docs doctor fmt lint golden python-is-new
.DELETE_ON_ERROR:

bench: .venv/bench.done
	@$(BIN)/python -m mononn_bench.doctor --brief --configfile $(CONFIG)
	@$(BIN)/python -m mononn_bench.workflow.run --cores $(CORES) --configfile $(CONFIG)

suite:
	@test -f workflows/suites/$(SUITE).yaml || { echo "There is no suite '$(SUITE)': make suite SUITE=NAME, one of" \
	  $(notdir $(basename $(wildcard workflows/suites/*.yaml))) >&2; exit 2; }
	@$(MAKE) --no-print-directory bench CONFIG=workflows/suites/$(SUITE).yaml

test: .venv/dev.done lint
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup --no-loadscope-reorder

test-networks: .venv/dev.done
	@$(BIN)/python -m pytest -m networks

test-emulated: .venv/dev.done
	@$(BIN)/python -m pytest -m emulated

test-mutants: .venv/dev.done
	@$(BIN)/python -m pytest -m mutants -s tests/core/cuda/test_many_mutants.py

test-backend: .venv/dev.done
	@$(BIN)/python -m pytest -m backend tests/core/test_backend_compiled.py

test-slow: .venv/dev.done
	@$(BIN)/python -m pytest -m slow --numprocesses 2 --dist loadgroup --no-loadscope-reorder

fuzz: .venv/dev.done
	@$(BIN)/python -m tests.fuzz --models $(MODELS)

docs: .venv/dev.done
	@$(BIN)/python -m sphinx -W --keep-going -q -c docs . build/site && echo build/site/index.html

# Needs nothing installed; shows more where the suite is.
doctor: python-is-new
	@python=$(BIN)/python; test -x $$python || python=$(PYTHON); $$python -m mononn_bench.doctor --configfile $(CONFIG)

lint: .venv/dev.done
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/snakefmt --check Snakefile workflows

fmt: .venv/dev.done
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format . && $(BIN)/snakefmt Snakefile workflows

golden: .venv/dev.done
	@$(BIN)/python -m pytest --update-golden
	@$(BIN)/python -m mononn_bench.report.readme .

python-is-new:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "$(PYTHON) is missing or older than Python 3.11; name a newer one: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 2; }

.venv/python.done: | python-is-new
	@$(PYTHON) -m venv .venv
	@touch $@

# A machine on which the suite cannot work is told so before anything is installed; tests need less.
.venv/bench.done: .venv/python.done pyproject.toml
	@$(PYTHON) -m mononn_bench.doctor --brief
	@$(TIMED) $(PIP) --editable '.[bench]'
	@touch $@

# PyTorch exports the tests' models; its environment file names the build without CUDA.
.venv/dev.done: .venv/python.done pyproject.toml envs/torch.txt
	@$(TIMED) $(PIP) --requirement envs/torch.txt && $(PIP) --editable '.[dev]'
	@touch $@ .venv/bench.done
