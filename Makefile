# headrace: `make demo` shows it, `make test` proves it. Both set up everything they need on first use.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.headrace-stamp
PYTEST := $(BIN)/python -m pytest

# How often `make chaos` kills the broker, and Spark with what it runs on; tests run the same loops a few times.
KILLS ?= 200
SPARK_KILLS ?= 50
FAULTS ?= 60
DAMAGES ?= 1000

# `make test` runs these with several at a time, the second kind file by file, since their databases take a while to
# start. The others measure or fill the machine, and each has it for itself.
WORKERS      ?= 2
SIDE_BY_SIDE := tests/architecture tests/unit tests/properties
BY_FILE      := tests/capture tests/sinks
SHORT        := "not (spark and slow)"

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup check format test test-spark test-cluster demo bench nexmark chaos docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## build .venv from requirements.lock (other targets do it on first use)

# pip and not a newer tool, so that Python 3.11 alone is enough on a fresh machine. The stamp sits inside the environment:
# remove .venv and everything is built again.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "headrace needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make setup PYTHON=python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

check: $(STAMP) ## format, lint, types, import contracts and unit tests, in under a minute
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) tests/architecture tests/unit -m "not slow and not servers"

format: $(STAMP) ## let ruff format the code and mend what it can
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

test: $(STAMP) ## every test, fast ones first
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) $(SIDE_BY_SIDE) -m $(SHORT) -n $(WORKERS) --dist worksteal
	$(PYTEST) $(BY_FILE) -m $(SHORT) -n $(WORKERS) --dist loadfile
	$(PYTEST) tests $(addprefix --ignore ,$(SIDE_BY_SIDE) $(BY_FILE) tests/cluster) -m $(SHORT)

test-spark: $(STAMP) ## all tests of Spark, also the long ones: kills, restarts, clusters (an hour)
	$(PYTEST) tests/spark tests/demo tests/docs tests/unit/spark -m spark

test-cluster: $(STAMP) ## client, source and sink on Apache Kafka with three brokers, whose leaders are killed
	$(PYTEST) tests/cluster --timeout=1800

demo: $(STAMP) ## real events through real clients, on this machine
	$(BIN)/headrace demo

bench: $(STAMP) ## benchmarks, as ratios measured in one run
	$(BIN)/python -m benchmarks

nexmark: $(STAMP) ## nineteen questions to an auction house, checked by DuckDB, timed beside Flink (which comes on first use)
	$(BIN)/python -m benchmarks.nexmark

chaos: $(STAMP) ## kill -9 under load with a checker: the broker KILLS times (200), Spark SPARK_KILLS times (50), capture with each database, sinks with each target
	$(BIN)/python -m tests.chaos.run --kills $(KILLS)
	$(BIN)/python -m tests.chaos.run --kills $(FAULTS) --faults all --session-ms 45000
	$(BIN)/python -m tests.chaos.damage --cases $(DAMAGES)
	$(BIN)/python -m tests.chaos.spark --kills $(SPARK_KILLS)
	$(BIN)/python -m tests.capture.kills --kills $(KILLS)
	$(BIN)/python -m tests.sinks.kills --kills $(SPARK_KILLS)
	$(BIN)/python -m tests.sinks.kills --spark --kills $(SPARK_KILLS)

docs: $(STAMP) ## write the parts of docs/ that are printed from the code
	$(BIN)/python docs/generate.py

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
