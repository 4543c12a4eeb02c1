# Everything runs from .venv, which is made once and again only when pyproject.toml changes; after that nothing here
# needs the network. An etcd for the tests is brought into it too, without root (see src/varlog/etcdserver.py). All paths
# are relative, so the checkout may lie anywhere, also under a name with spaces.

PYTHON ?= python3
JOBS   ?= 2
SEEDS  ?= 10000
ROUNDS ?= 30
SEED   ?= 1
RUNS   ?= 20

VENV  := .venv
STAMP := $(VENV)/.installed
RUN   := $(VENV)/bin/python

# The tests start processes by the hundred. None is to compile again what another one has, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

.PHONY: venv
venv: $(STAMP) ## make .venv with the package and everything needed to work on it

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --editable '.[dev]'
	-@$(RUN) -m varlog.etcdserver
	@touch $(STAMP)

.PHONY: demo
demo: $(STAMP) ## watch a cluster be killed and come back, and Spark archive and read its log; about a minute
	@$(RUN) -m varlog demo

# Under a name of its own, or `make -n test` would run what it is to show.
BESIDE := $(MAKE) --no-print-directory

.PHONY: test
test: lint typecheck ## lint, check types, run every test, and 352 simulated clusters
	@echo "The simulator runs beside the tests, when they wait; what it says is shown when they are done."
	@log=$$(mktemp); $(BESIDE) simulate >"$$log" 2>&1 & simulator=$$!; \
	trap 'kill $$simulator 2>/dev/null' INT TERM; \
	$(RUN) -m pytest -n $(JOBS) --dist loadgroup; tests=$$?; \
	wait $$simulator; simulated=$$?; cat "$$log"; rm -f "$$log"; \
	exit $$((tests || simulated))

# The tests wait for half of the time, for clusters to do as they are told. A simulated seed takes the same course
# however slowly it runs, so it leaves the processors to whoever wants them. Seeds 249 and 524 are there for mutations
# that none before them finds (tests/sim/mutations.py).
.PHONY: simulate
simulate: $(STAMP)
	nice -n 19 $(RUN) -m varlog sim --seeds 160 --jobs $(JOBS) --require-coverage
	nice -n 19 $(RUN) -m varlog sim --first-seed 249 --seeds 1 --jobs 1
	nice -n 19 $(RUN) -m varlog sim --first-seed 524 --seeds 1 --jobs 1
	nice -n 19 $(RUN) -m varlog sim --ordering sequencer --seeds 110 --jobs $(JOBS) --require-coverage
	nice -n 19 $(RUN) -m varlog sim --transactions --seeds 40 --jobs $(JOBS) --require-coverage
	nice -n 19 $(RUN) -m varlog sim --ordering sequencer --transactions --seeds 40 --jobs $(JOBS) --require-coverage

.PHONY: lint
lint: $(STAMP) ## style and likely mistakes
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

.PHONY: typecheck
typecheck: $(STAMP) ## mypy --strict over everything
	$(RUN) -m mypy

.PHONY: bench
bench: $(STAMP) ## measure everything; writes tables, pictures and JSON to benchmarks/results
	failed=0; for part in core cluster sequencer faults meta spark; do $(RUN) -m benchmarks.$$part || failed=1; done; exit $$failed

.PHONY: bench-core
bench-core: $(STAMP) ## measure storage, metadata and simulator
	$(RUN) -m benchmarks.core

.PHONY: bench-cluster
bench-cluster: $(STAMP) ## measure a cluster of real processes on this machine; takes ten minutes
	$(RUN) -m benchmarks.cluster

.PHONY: bench-faults
bench-faults: $(STAMP) ## measure how long appends wait when nodes fail, rejoin, move; takes twenty minutes (RUNS=20)
	$(RUN) -m benchmarks.faults --runs $(RUNS)

.PHONY: bench-meta
bench-meta: $(STAMP) ## measure metadata in etcd: leaders killed and paused, latency, rate, size; takes ten minutes (RUNS=20)
	$(RUN) -m benchmarks.meta --runs $(RUNS)

.PHONY: bench-sequencer
bench-sequencer: $(STAMP) ## measure the sequencer ordering: positions, chains, and what dies of them; takes ten minutes (RUNS=20)
	$(RUN) -m benchmarks.sequencer --runs $(RUNS)

.PHONY: bench-spark
bench-spark: $(STAMP) ## measure source, stream and archive on Spark beside Parquet; takes five minutes
	$(RUN) -m benchmarks.spark

.PHONY: sim
sim: $(STAMP) ## look for a seed that breaks the log; takes the better part of an hour (SEEDS=10000 JOBS=2)
	$(RUN) -m varlog sim --seeds $(SEEDS) --jobs $(JOBS)
	$(RUN) -m varlog sim --ordering sequencer --seeds $(SEEDS) --jobs $(JOBS)
	$(RUN) -m varlog sim --transactions --seeds $(SEEDS) --jobs $(JOBS)
	$(RUN) -m varlog sim --ordering sequencer --transactions --seeds $(SEEDS) --jobs $(JOBS)

.PHONY: soak
soak: $(STAMP) ## put real clusters through faults, and the wire through garbage, for minutes (ROUNDS=30 SEED=1)
	$(RUN) -m tests.cluster.soak --rounds $(ROUNDS) --seed $(SEED)
	$(RUN) -m tests.cluster.meta_soak --rounds $(ROUNDS) --seed $(SEED)
	$(RUN) -m tests.metarepo.etcd_soak --seconds 60 --seed $(SEED)
	$(RUN) -m tests.pipeline.soak
	$(RUN) -m tests.spark.sink_soak
	$(RUN) -m benchmarks.spark_kills --kills 100 --seed $(SEED)
	$(RUN) -m tests.wire.fuzz --seconds 120 --seed $(SEED)

.PHONY: clean
clean: ## remove .venv, caches and build output
	rm -rf $(VENV) build dist src/varlog.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
