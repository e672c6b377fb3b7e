# make report   from an empty clone to reports/summary.pdf: environments, engine, model, measurements, report
# make test     all checks and tests, with a real engine in some of them
# make test-slurm   the workflow on a real Slurm of one node (root)
# Wants Python >= 3.11 with venv, make, gcc and git. Paths are relative, so that the clone may lie anywhere.

PYTHON ?= python3
CONFIG ?= config/config.yaml
CORES ?= 1

BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input
WORKERS := --numprocesses 2 --dist loadfile
MODEL := .engine/models/bundled
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

.PHONY: help setup engine model report check test test-quick test-slurm lint lock statistics reliability clean

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 20

setup: .venv/pipeline.stamp ## the pipeline's environment, .venv

engine: .venv/pipeline.stamp ## the engine's environment, .engine, if CONFIG does not name an engine of your own
	@$(BIN)/pdkv install-engine --config "$(CONFIG)"

model: engine ## the bundled model
	@$(BIN)/pdkv prepare-model $(MODEL)

report: engine ## measure what is not measured yet, and write the report (CONFIG=config/config.yaml)
	@PATH="$$PWD/$(BIN):$$PATH" snakemake --cores $(CORES) --quiet reason --configfile "$(CONFIG)" -- reports/summary.pdf
	@echo "report: reports/summary.pdf and reports/summary.md"

test: .venv/dev.stamp lint ## everything: lint, unit tests, tests with a real engine on the CPU
	@$(BIN)/pdkv install-engine cpu
	@$(BIN)/pdkv prepare-model $(MODEL)
	@echo "test: pytest"; PATH="$$PWD/$(BIN):$$PATH" pytest -m "not engine" $(WORKERS)
	@echo "test: pytest, real engines"; PATH="$$PWD/$(BIN):$$PATH" pytest -m engine

test-slurm: .venv/dev.stamp ## on a real Slurm of one node, started for it: wants root, installs Slurm if it is missing
	@$(BIN)/pdkv install-engine cpu
	@$(BIN)/pdkv prepare-model $(MODEL)
	@tests/slurm/run.sh "$$PWD/$(BIN)/python"

test-quick: .venv/dev.stamp lint ## the same without a real engine: a few minutes
	@PATH="$$PWD/$(BIN):$$PATH" pytest -m "not engine" $(WORKERS)

lint: .venv/dev.stamp ## ruff, mypy, snakefmt, snakemake --lint
	@echo "lint: ruff"; $(BIN)/ruff check .; $(BIN)/ruff format --check --quiet .
	@echo "lint: mypy"; $(BIN)/mypy
	@echo "lint: snakefmt"; $(BIN)/snakefmt --check Snakefile workflow
	@echo "lint: snakemake"; PATH="$$PWD/$(BIN):$$PATH" snakemake --lint

lock: .venv/dev.stamp ## make envs/*.txt anew (UPGRADE=1: with the newest versions)
	@$(BIN)/python envs/lock.py $(if $(UPGRADE),--upgrade)

statistics: .venv/pipeline.stamp ## coverage, errors and power of the verdicts, anew into docs/statistics.md
	@$(BIN)/python benchmarks/statistics_tables.py docs/statistics.md

reliability: .venv/dev.stamp ## which faults the tests show, anew into docs/reliability.md
	@$(BIN)/python tests/reliability_table.py docs/reliability.md

clean: ## remove reports and caches; measurements (results/), environments and the model stay
	rm -rf reports .pytest_cache .mypy_cache .ruff_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- environments: a stamp is written last, so that what was interrupted is done again ----------------------------

.venv/pipeline.stamp: envs/pipeline.txt pyproject.toml
	@$(BIN)/python -c '' 2>/dev/null || { \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "make: this needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1 | head -n 1 || true)." >&2; \
	    echo "  Name another one: make report PYTHON=python3.12" >&2; exit 1; }; \
	  echo "setup: .venv with $$($(PYTHON) --version)"; rm -rf .venv; \
	  $(PYTHON) -m venv .venv || { rm -rf .venv; \
	    echo "make: $(PYTHON) cannot make virtual environments (Debian, Ubuntu: apt install python3-venv)." >&2; exit 1; }; }
	@echo "setup: the pipeline's packages go into .venv (900 MB, two or three minutes)"
	@$(PIP) --requirement envs/pipeline.txt
	@$(PIP) --no-deps --editable .
	@touch $@

.venv/dev.stamp: .venv/pipeline.stamp envs/dev.txt
	@echo "setup: tools for tests and checks go into .venv"
	@$(PIP) --requirement envs/dev.txt
	@touch $@
