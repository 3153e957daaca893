# Every target sets itself up in .venv from a fresh clone, and again only when pyproject.toml has changed.
#   make help     what there is

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

# The first Python that is new enough; `make PYTHON=python3.13 test` picks another one.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
# Bytecode is kept, whatever the shell says: else each of the many processes of a run compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
COMMANDS ?= 500000
FUZZ ?= 1000000
TESTERS ?= 3
MINUTES ?= 10
KILLS ?= 200
COMPILED := build/compiled
# What has Spark in it, and what makes its own package or only looks at the source.
NOT_COMPILED := $(addprefix --ignore tests/,spark docs examples packaging tools cli/test_pipeline.py cli/test_pipeline_sinks.py)

.PHONY: help setup check test test-compiled test-busy coverage test-long run bench bench-engine bench-server bench-recovery bench-spark differential fuzz soak oracle clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile

setup: $(STAMP) ## a virtual environment in .venv with everything that the other targets need

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed: make PYTHON=... setup" >&2; exit 1; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing millstream with PySpark and what tests need: once, a minute or two, and pip says nothing meanwhile"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[dev,server,metrics,spark]'
	@touch $(STAMP)

check: $(STAMP) ## lint, types, and who imports whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py

# Side by side, because many of them wait: for leases, for servers, for Spark. tests/conftest.py says what stays together.
test: $(STAMP) oracle ## all tests, on real servers and real Spark
	@$(BIN)/python -m tests.support.at_hand
	$(BIN)/python -m pytest -n $(TESTERS) --dist loadfile --no-loadscope-reorder --durations 25

# In this process and in all that tests start: the compiled package comes before the source tree on the path.
test-compiled: $(COMPILED)/.built oracle ## the same tests on the compiled core, but for those of Spark
	PYTHONPATH=$(CURDIR)/$(COMPILED) MILLSTREAM_BUILD=$(CURDIR)/$(COMPILED) \
		$(BIN)/python -m pytest -n $(TESTERS) --dist loadfile --no-loadscope-reorder tests $(NOT_COMPILED)

$(COMPILED)/.built: $(STAMP) hatch_build.py $(shell find src/millstream -name '*.py')
	@rm -rf $(COMPILED)
	@echo "compiling with mypyc: a minute or two"
	@mkdir -p $(dir $(COMPILED))
	@$(BIN)/python hatch_build.py $(COMPILED) >$(COMPILED).log 2>&1 || { tail -20 $(COMPILED).log >&2; exit 1; }
	@touch $@

test-busy: $(STAMP) oracle ## the same tests while two other processes keep both processors busy
	@$(BIN)/python -m tests.support.at_hand
	$(BIN)/python -m tests.support.busy $(BIN)/python -m pytest -n $(TESTERS) --dist loadfile --no-loadscope-reorder

coverage: $(STAMP) oracle ## the tests that need no Spark, with the floor that pyproject.toml names
	$(BIN)/python -m pytest -n $(TESTERS) --dist loadfile --cov --cov-report=term:skip-covered tests $(NOT_COMPILED)

test-long: $(STAMP) oracle ## what takes minutes each: drivers killed, the whole demo, the suites of Redis and redis-py
	@$(BIN)/python -m tests.support.at_hand
	$(BIN)/python -m pytest -m long -n 2 --dist loadfile --timeout 1800 --durations 25

run: $(STAMP) ## the whole promise in about a minute: broker, workers and Spark on 200,000 orders, and a report
	@$(BIN)/python -m examples.shop

bench: bench-engine bench-server bench-recovery bench-spark ## all benchmarks

bench-engine: $(STAMP) oracle ## the engine against real servers: a table of ratios; fails below the promised ones
	$(BIN)/python -m bench.engine

bench-server: $(STAMP) oracle ## the server against Valkey and Redis under load; fails below the promised ratios
	$(BIN)/python -m bench.server

bench-recovery: $(STAMP) oracle ## what dead workers left, and how late delays and retries are; fails above the promises
	$(BIN)/python -m bench.recovery
	$(BIN)/python -m bench.lateness

bench-spark: $(STAMP) ## Spark against redis-py, on a real Valkey and on our broker; fails below the promised ratios
	$(BIN)/python -m bench.spark

differential: $(STAMP) oracle ## COMMANDS (500,000) random commands compared with a real Redis, reply by reply
	$(BIN)/python -m tests.differential.run --commands $(COMMANDS)
	$(BIN)/python -m tests.differential.run --commands $$(($(COMMANDS) / 10)) --direct
	$(BIN)/python -m tests.differential.run --commands $$(($(COMMANDS) / 20)) --effects
	$(BIN)/python -m tests.differential.run --commands $$(($(COMMANDS) / 10)) --server valkey

fuzz: $(STAMP) ## FUZZ (1,000,000) random argument lists: an error each time, never an exception
	MILLSTREAM_FUZZ=$(FUZZ) $(BIN)/python -m pytest tests/faults/test_fuzz_argv.py tests/faults/test_fuzz_socket.py --timeout 7200

soak: $(STAMP) ## the long proofs: MINUTES (10) at full rate, KILLS (200) of the server, 5,000 connections, a million entries
	$(BIN)/python -m tests.long.soak --minutes $(MINUTES)
	$(BIN)/python -m tests.long.kills --always $(KILLS) --everysec $$(($(KILLS) / 5))
	$(BIN)/python -m tests.long.crowd
	$(BIN)/python -m tests.long.large

# A real Redis of the release we follow. On a desk that cannot have one, the tests that want it skip and say why;
# where CI is set, not having it is an error.
oracle: $(STAMP)
	@$(BIN)/python tools/oracle.py >/dev/null || test -z "$$CI"

clean: ## everything that make has made here; the built Redis stays in its cache
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
