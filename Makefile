# Every command that people and CI run. `make help` lists them.

CACHE := $(or $(SGLANG_DEV_CACHE),$(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/sglang-operator)
VENV := $(CACHE)/venv
PYTHON := $(VENV)/bin/python
PYTEST := $(PYTHON) -m pytest
export SGLANG_DEV_CACHE := $(CACHE)
export PYTHONPATH := $(CURDIR)/operator
export PATH := $(VENV)/bin:$(CACHE)/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help install install-cluster check lint types unit test test-contract test-engine test-cluster demo bench-tuner \
	generate verify cluster-up cluster-down releases releases-check lock

help: ## Show this list
	@printf 'Usage: make TARGET\n\n'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\nEverything that is downloaded or built is kept in %s\n' '$(CACHE)'

install: ## Python environment with the pinned packages (about 1 minute, once)
	@hack/install.sh '$(VENV)'

install-cluster: install ## What the local cluster needs: Debian packages, Kubernetes, SGLang's packages (once, about 35 minutes)
	@$(PYTHON) hack/cluster install
	@$(PYTHON) hack/engine/fetch.py env

check: lint types verify unit ## Lint, types, generated files, unit tests; needs no cluster (about 3 minutes)

lint: install ## Style and import rules
	@$(VENV)/bin/ruff check
	@$(VENV)/bin/ruff format --check
	@PYTHONPATH=operator $(VENV)/bin/lint-imports

types: install ## mypy in strict mode
	@$(VENV)/bin/mypy -p sglang_operator -p sglang_specpatch
	@$(VENV)/bin/mypy hack tests

unit: install ## Unit and golden tests
	@$(PYTEST) -q -n auto --dist loadscope tests/unit tests/golden

test: check test-contract test-engine test-cluster ## Everything a machine without a GPU can run

test-contract: install-cluster ## Models, roles and chart against a real API server; queries against a real Prometheus
	@$(PYTEST) -q tests/contract tests/chart tests/adapters

test-engine: install ## The engine patch on real SGLang sources, every supported release
	@$(PYTHON) hack/engine/fetch.py env
	@$(PYTHON) hack/engine/fetch.py tree
	@$(PYTEST) -q -n auto --dist loadscope tests/engine

test-cluster: install-cluster ## The whole line on a local cluster
	@$(PYTEST) -q tests/cluster

demo: install-cluster ## The main job on a local cluster, narrated
	@$(PYTHON) hack/demo

bench-tuner: install ## The tuner against all curves, workloads and baselines, writes docs/tuning-results.md (about 5 minutes)
	@$(PYTHON) hack/bench/tuner.py

generate: install ## Write the CRD, manifests and reference pages anew
	@$(PYTHON) hack/generate.py

verify: install ## Fail if a generated file differs from its source
	@$(PYTHON) hack/generate.py --check

cluster-up: install-cluster ## Start the local cluster
	@$(PYTHON) hack/cluster up

cluster-down: install ## End the local cluster and remove its traces
	@$(PYTHON) hack/cluster down

releases: install ## Patch every SGLang release of the package index, write docs/engine-releases.md (about 4 minutes)
	@PYTHONPATH=$(CURDIR)/operator:$(CURDIR)/hack $(PYTHON) -m engine.releases

releases-check: install ## Fail if the package index has a SGLang release that is not known (seconds, network)
	@PYTHONPATH=$(CURDIR)/operator:$(CURDIR)/hack $(PYTHON) -m engine.releases --check

lock: install ## Resolve the Python packages anew into requirements/
	@hack/lock.sh '$(VENV)'
