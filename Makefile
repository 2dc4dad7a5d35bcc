# Lakeferry in a few words; `make` shows them.

COMPONENTS ?= pyarrow-lowest versitygw lakefs postgresql chromium oldest-spark oldest-connect
PYTEST ?= .venv/bin/pytest
# Tests that share a JVM or a server stay on one worker, and those that start a JVM of their
# own on one, too. Three workers keep two cores busy: two have a JVM that tests share, and the
# third often waits for a server, or for something to time out.
PYTEST_FLAGS ?= -n 3 --dist loadgroup
TESTS ?=
# How long `make soak` is: seconds among hostile clients, interleavings, rounds of kills.
SOAK_S ?= 600
SOAK_SEEDS ?= 20000
SOAK_ROUNDS ?= 5
SOAK_COPIES = test_a_driver_that_is_killed_leaves_a_copy_that_can_be_completed
SOAK_WHOLE = tests/unit tests/compat/test_engines.py tests/compat/test_export.py \
	tests/compat/test_spark_replay.py tests/compat/test_transfer_delta.py \
	tests/scenario/test_cli_demo.py

SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help setup components postgresql demo test soak lint bench matrix matrix-pyarrow docs dist lock clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.installed ## make .venv and fetch Spark's jars
	@.venv/bin/python -m tests.support.components install spark-jars connect-client

.venv/.installed: requirements.lock pyproject.toml tools/uv.lock tools/setup.sh
	tools/setup.sh
	@touch $@

components: setup ## build the servers that the tests start (first time: 5 to 15 minutes)
	@.venv/bin/python -m tests.support.components install $(COMPONENTS)

postgresql: setup ## install PostgreSQL with the system's package manager
	@.venv/bin/python -m tests.support.components install postgresql

demo: setup ## the whole story on local disk
	.venv/bin/lakeferry demo

test: components ## run the tests, and a share of the exhaustive ones; TESTS=path chooses some
	$(PYTEST) $(PYTEST_FLAGS) $(TESTS)

soak: components ## run the long forms of tests: many seeds, and ten minutes among hostile clients
	LAKEFERRY_SOAK_S=$(SOAK_S) $(PYTEST) -s tests/scenario/test_server_soak.py
	$(PYTEST) $(PYTEST_FLAGS) --share all tests/simulation --simulation-seeds $(SOAK_SEEDS)
	$(PYTEST) $(PYTEST_FLAGS) --share all $(SOAK_WHOLE)
	HYPOTHESIS_PROFILE=soak $(PYTEST) $(PYTEST_FLAGS) --share all tests/property
	for round in $$(seq $(SOAK_ROUNDS)); do \
		$(PYTEST) $(PYTEST_FLAGS) --share all tests/scenario/test_redirect_killed.py \
			tests/scenario/test_redirect_killed_by_store.py \
			tests/scenario/test_redirect_killed_on_spark.py tests/scenario/test_transfer_kills.py \
			tests/scenario/test_transfer_faults.py tests/scenario/test_fleet.py \
			$(addprefix tests/compat/test_spark_copy.py::,$(SOAK_COPIES)) || exit 1; \
	done
	$(MAKE) matrix-pyarrow

matrix-pyarrow: components ## run the unit, property and golden tests with the lowest pyarrow
	PYTHONPATH="$$(.venv/bin/python -m tests.support.components path pyarrow-lowest)" \
		$(PYTEST) $(PYTEST_FLAGS) --share all tests/unit tests/property tests/golden

lint: setup ## check style, formatting and types
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

BENCHMARKS ?= $(basename $(notdir $(sort $(wildcard bench/*.py))))

bench: components ## run the benchmarks, each against a peer, and write bench/README.md
	@missed=0; for benchmark in $(BENCHMARKS); do \
		echo "== $$benchmark"; \
		LAKEFERRY_BENCH_PAGE=1 .venv/bin/python "bench/$$benchmark.py" || missed=1; \
	done; exit $$missed

SPARKS ?=

matrix: setup ## try every line of Spark, and write the table of docs/compatibility.md; SPARKS="3.5 4.0" tries some
	@.venv/bin/python -m tests.support.components install oldest-connect
	.venv/bin/python -m tests.matrix $(SPARKS)
	for line in $(filter-out 4.3,$(or $(SPARKS),3.5 4.0 4.1 4.2)); do \
		LAKEFERRY_CONNECT_LINE=$$line $(PYTEST) -n 0 -q tests/compat/test_oldest_spark_connect.py || exit 1; \
	done

docs: setup ## build the site into build/site, and check that every link leads somewhere
	.venv/bin/python tools/check_links.py README.md CONTRIBUTING.md CHANGELOG.md bench docs tests/support
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs --quiet build --strict

dist: setup ## build the wheel and the sdist, and try them in clean environments
	tools/dist.sh

lock: setup ## renew requirements.lock, the locks in tools and the digests of Spark's jars
	tools/lock.sh

clean: ## remove what was made here; the cache folder stays
	rm -rf .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
