# `make setup` prepares this clone, `make demo` shows Ferry at work, `make test` runs the quick tiers of the tests.
.DEFAULT_GOAL := help
.PHONY: help setup test test-all lint unit sim cluster fuzz test-kube-api test-kube test-rdma test-long test-versions canonical images demo demo-kube crds docs bench-handover bench-channel bench-throughput bench-checkpoints bench-recovery bench-latency bench-scale bench-strategies bench-unimico bench-reconfigure bench-reprogram paper clean

SEEDS ?= 2000
FROM ?= 0
QUICK = lint unit sim core
SKIP ?=
PYTHON_HERE = PYTHONPATH=runtime:operator:. .venv/bin/python

help:
	@echo 'make setup             installs all that Ferry needs into .venv, without root'
	@echo 'make demo              a job that is scaled and killed while it runs, checked against the oracle'
	@echo 'make demo-kube         a Kubernetes of three nodes on this machine (root), Ferry on it, and a job that is scaled there'
	@echo 'make test              lint, unit and sim tests, and the core tests with real processes: a quarter of an hour, without root'
	@echo 'make test-all          the same, and all other tests with real processes, fuzz, virtual machines and Kubernetes (root)'
	@echo 'make lint | unit | cluster'
	@echo 'make fuzz MINUTES=4          random jobs with random faults, on seeds that move with the commit'
	@echo 'make sim SEEDS=2000 FROM=0   the simulated world, seed by seed'
	@echo 'make test-kube-api     CRD and operator on a real API server without nodes'
	@echo 'make test-kube         jobs on a cluster of three nodes on this machine (root); with FERRY_KUBE_EXISTING=1 on the cluster of KUBECONFIG'
	@echo 'make test-long         long tests on that cluster, over real verbs and with Kafka; no change waits for them'
	@echo 'make test-versions     CRD and operator on API servers of the oldest Kubernetes that the chart takes, and of the usual one'
	@echo 'make test-rdma         channels and a job over real verbs, in virtual machines (root)'
	@echo 'make canonical         the papers'\'' queries on the whole canonical inputs, compared with the published fingerprints'
	@echo 'make images            builds the images of the operator and of the jobs, as archives'
	@echo 'make crds              generates the CRD and docs/fields.md from the models'
	@echo 'make docs              builds the site in build/site; a warning is an error'
	@echo 'make bench-handover | bench-throughput | bench-channel | bench-checkpoints | bench-recovery | bench-latency | bench-scale | bench-strategies | bench-unimico | bench-reconfigure | bench-reprogram'
	@echo 'make paper FIGURE=KEY  measures a row of bench/PAPERS.md again'
	@echo 'make clean             removes caches and results; .venv stays'

setup:
	@scripts/setup

test: setup
	@SEEDS=$(SEEDS) FROM=$(FROM) scripts/test $(QUICK)

test-all: setup
	@SEEDS=$(SEEDS) FROM=$(FROM) scripts/test $(filter-out $(SKIP),$(QUICK) cluster fuzz rdma kube-api kube)

lint unit fuzz: setup
	@scripts/test $@

cluster: setup
	@scripts/test core cluster

sim: setup
	@SEEDS=$(SEEDS) FROM=$(FROM) scripts/test sim

test-kube-api: setup
	@scripts/test kube-api

test-kube: setup
	@scripts/test kube

test-long: setup
	@scripts/test long

test-versions: setup
	@VERSIONS="$(VERSIONS)" scripts/test versions

canonical: setup
	@scripts/test canonical

test-rdma: setup
	@scripts/test rdma

images: setup
	@images/build

demo: setup
	@$(PYTHON_HERE) bench/demo.py

demo-kube: setup
	@$(PYTHON_HERE) bench/demo_kube.py

crds: setup
	@$(PYTHON_HERE) -m ferry_operator.crd >crds/.new && mv crds/.new crds/streamjobs.ferry.dev.yaml
	@$(PYTHON_HERE) -m ferry_operator.crd fields >docs/.new && mv docs/.new docs/fields.md

docs: setup
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

bench-handover: setup
	@$(PYTHON_HERE) bench/handover.py

bench-channel: setup
	@$(PYTHON_HERE) bench/channel.py

bench-throughput: setup
	@$(PYTHON_HERE) bench/throughput.py

bench-checkpoints: setup
	@$(PYTHON_HERE) bench/checkpoints.py

bench-recovery: setup
	@$(PYTHON_HERE) bench/recovery.py

bench-latency: setup
	@$(PYTHON_HERE) bench/latency.py

bench-scale: setup
	@$(PYTHON_HERE) bench/scale.py

bench-strategies: setup
	@$(PYTHON_HERE) bench/strategies.py

bench-unimico: setup
	@$(PYTHON_HERE) bench/unimico.py

bench-reconfigure: setup
	@$(PYTHON_HERE) bench/reconfigure.py

bench-reprogram: setup
	@$(PYTHON_HERE) bench/reprogram.py

paper: setup
	@$(PYTHON_HERE) bench/papers.py $(FIGURE)

clean:
	@rm -rf build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis bench/results
	@find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
