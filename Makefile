# The two commands: `make bench` and `make test`. PYTHON chooses the interpreter, CORES the cores of the workflow.
SHELL := /bin/bash
PYTHON ?= python3
CORES ?= all
CONFIG ?= workflows/config.yaml
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --retries 1 --timeout 20
TIMED = started=$$SECONDS; trap 'echo "installation: $$((SECONDS - started)) s ($@)"' EXIT;

.PHONY: bench test doctor fmt lint golden
.DELETE_ON_ERROR:

bench: .venv/bench.done
	@$(BIN)/python -m mononn_bench.workflow.run --cores $(CORES) --configfile $(CONFIG)

test: .venv/dev.done lint
	@$(BIN)/python -m pytest

doctor: .venv/bench.done
	@$(BIN)/mononn-bench doctor

lint: .venv/dev.done
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/snakefmt --check Snakefile workflows

fmt: .venv/dev.done
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format . && $(BIN)/snakefmt Snakefile workflows

golden: .venv/dev.done
	@$(BIN)/python -m pytest --update-golden
	@$(BIN)/python -m mononn_bench.report.readme .

.venv/python.done:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "$(PYTHON) is missing or older than Python 3.11; name a newer one: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 2; }
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/bench.done: .venv/python.done pyproject.toml
	@$(TIMED) $(PIP) --editable '.[bench]'
	@touch $@

# PyTorch exports the tests' models; its environment file names the build without CUDA.
.venv/dev.done: .venv/python.done pyproject.toml envs/torch.txt
	@$(TIMED) $(PIP) --requirement envs/torch.txt && $(PIP) --editable '.[dev]'
	@touch $@ .venv/bench.done
