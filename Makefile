# headrace: `make demo` shows it, `make test` proves it. Both set up everything they need on first use.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.headrace-stamp
PYTEST := $(BIN)/python -m pytest

# How often `make chaos` kills the broker, does other things to it, damages its files, and kills Spark with what it runs
# on; tests do the same a few times.
KILLS ?= 200
FAULTS ?= 60
DAMAGES ?= 1000
SPARK_KILLS ?= 50

# `make test` runs these several at a time: the first kind test by test, the others file by file, since their servers
# take a while to start, in two runs, so that no process gathers more than a thousand open files. What is left, the tests
# on Spark, has the machine for itself.
WORKERS      ?= 2
BY_TEST      := tests/architecture tests/unit tests/properties
BY_FILE      := tests/capture tests/console tests/sinks tests/sourcing tests/docs
BY_PROTOCOL  := tests/amqp tests/differential tests/interop tests/servers
SHORT        := "not (spark and slow)"

# `make check` looks at a tenth of the examples of each property; `make test` at all of them.
EXAMPLES_PART := 10
CHECKS        := check-format check-lint check-types check-contracts check-tests

# Tests of `make check` keep their files in memory where a gigabyte is free: they sync thousands of small ones. Tests of
# `make test` have a real disk.
MEMORY := $(shell test -w /dev/shm && df --output=avail /dev/shm | awk 'NR == 2 && $$1 > 1000000 {print "/dev/shm"}')

# Compiled files are kept, whatever the environment says: compiling the tests takes longer than running most of them.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup check $(CHECKS) format test test-all test-spark test-cluster explore demo bench nexmark chaos docs site screenshot clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## build .venv from requirements.lock (other targets do it on first use)

# pip and not a newer tool, so that Python 3.11 alone is enough on a fresh machine. The stamp sits inside the environment:
# remove .venv and everything is built again.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "headrace needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make setup PYTHON=python3.12"; exit 1; }
	@echo "installing everything into $(VENV), once: 1.5 GB, which takes a few minutes"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

check: $(STAMP) ## format, lint, types, import contracts and unit tests without the slow ones, in under a minute
	@$(MAKE) --no-print-directory --jobs --output-sync $(CHECKS)

$(CHECKS): $(STAMP)

check-format:
	$(BIN)/ruff format --check .

check-lint:
	$(BIN)/ruff check .

check-types:
	$(BIN)/mypy

check-contracts:
	$(BIN)/lint-imports

check-tests: export TMPDIR := $(or $(MEMORY),$(TMPDIR),/tmp)
check-tests:
	$(PYTEST) tests/architecture tests/unit -m "not slow and not servers" --examples-part $(EXAMPLES_PART) -n $(WORKERS) --dist worksteal

format: $(STAMP) ## let ruff format the code and fix what it can
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

test: $(STAMP) ## every test but the long ones on Spark and those of a cluster, fast ones first
	@$(MAKE) --no-print-directory --jobs --output-sync check-format check-lint check-types check-contracts
	$(PYTEST) $(BY_TEST) -m $(SHORT) -n $(WORKERS) --dist worksteal
	$(PYTEST) $(BY_FILE) -m $(SHORT) -n $(WORKERS) --dist loadfile
	$(PYTEST) $(BY_PROTOCOL) -m $(SHORT) -n $(WORKERS) --dist loadfile
	$(PYTEST) tests $(addprefix --ignore ,$(BY_TEST) $(BY_FILE) $(BY_PROTOCOL) tests/cluster) -m $(SHORT)

test-spark: $(STAMP) ## all tests on Spark, also the long ones: kills, restarts, clusters (an hour)
	$(PYTEST) tests/spark tests/demo tests/docs tests/unit/spark -m spark

test-all: test test-spark test-cluster ## every test there is (two hours)

test-cluster: $(STAMP) ## client, source and sink on Apache Kafka with three brokers, whose leaders are killed
	$(PYTEST) tests/cluster --timeout=1800

explore: $(STAMP) ## properties with examples that nobody has looked at yet; a failure prints what repeats it
	HEADRACE_EXPLORE=1 $(PYTEST) tests/unit tests/properties -m "not servers" -n $(WORKERS) --dist worksteal

demo: $(STAMP) ## real events through real clients, on this machine
	$(BIN)/headrace demo

bench: $(STAMP) ## benchmarks, as ratios measured in one run; RECORD=benchmarks/results keeps every round as JSON
	$(BIN)/python -m benchmarks $(if $(RECORD),--record $(RECORD))

nexmark: $(STAMP) ## nineteen questions to an auction house, checked by DuckDB, timed beside Flink (which comes on first use)
	$(BIN)/python -m benchmarks.nexmark

chaos: $(STAMP) ## for hours: kill -9 under load with a checker (the broker KILLS times, then Spark, capture, sinks, event stores), other faults, damaged files
	$(BIN)/python -m tests.chaos.run --kills $(KILLS)
	$(BIN)/python -m tests.chaos.run --kills $(FAULTS) --faults all --session-ms 45000
	$(BIN)/python -m tests.chaos.run --kills $(FAULTS) --faults restore,kill --session-ms 45000
	$(BIN)/python -m tests.chaos.damage --cases $(DAMAGES)
	$(BIN)/python -m tests.amqp.kills --kills $(KILLS)
	$(BIN)/python -m tests.amqp.move_kills --kills $(KILLS)
	$(BIN)/python -m tests.chaos.spark --kills $(SPARK_KILLS)
	$(BIN)/python -m tests.chaos.tables --kills $(SPARK_KILLS)
	$(BIN)/python -m tests.chaos.patterns --kills $(SPARK_KILLS)
	$(BIN)/python -m tests.capture.kills --kills $(KILLS)
	$(BIN)/python -m tests.capture.ddl --runs $(SPARK_KILLS)
	$(BIN)/python -m tests.sinks.kills --kills $(SPARK_KILLS)
	$(BIN)/python -m tests.sourcing.kills --kills $(KILLS)
	$(BIN)/python -m tests.sinks.kills --spark --kills $(SPARK_KILLS)

docs: $(STAMP) ## write the parts of docs/ that are printed from the code
	$(BIN)/python docs/generate.py

site: $(STAMP) ## build docs/ as a site into build/site; a broken link or anchor fails
	$(BIN)/python docs/stage_site.py
	$(BIN)/zensical build --strict

screenshot: $(STAMP) ## take the picture of the console that the README shows; needs Chromium
	$(BIN)/python docs/screenshot.py

clean: ## remove the environment and caches
	rm -rf $(VENV) .cache build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
