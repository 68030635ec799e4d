# Everything a person types at this project. `make run` and `make test` set up all they need.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
RLLIB := .venv-rllib
REJAX := .venv-rejax
SERVING := .venv-serving-peers
CLIENTS := .venv-triton-client .venv-seldon-client
SOURCES := src tests benchmarks docs
DEMO := demo
LOCKS := pyproject.toml requirements.lock locked_requirements.py
comma := ,
empty :=
space := $(empty) $(empty)
PIP_FLAGS := --quiet --disable-pip-version-check

.PHONY: help run programs quick test test-slow test-kubernetes check format lint types layers bench lock clean

help:  ## What can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

run: $(VENV)/.installed  ## Trains PPO on CartPole-v1 until it is solved, in a demo project
	@mkdir -p $(DEMO)
	@cd $(DEMO) && { test -f steppe.json || ../$(BIN)/steppe init --name demo > /dev/null; }
	@cd $(DEMO) && ../$(BIN)/steppe experiment new -f cartpole_ppo -n cartpole --force --start
	@echo 'these lie in $(DEMO)/; to use the commands: cd $(DEMO) && source ../$(BIN)/activate'

programs:  ## As root on Debian: PostgreSQL and Chromium, without which the tests that use them are skipped
	@if ! { command -v chromium && ls -d /usr/lib/postgresql/*/bin; } > /dev/null 2>&1; then \
		apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
			postgresql chromium; fi

# What is wrong shows here first: specs, losses, manifests, units of serve, the docs. Nothing that starts a process.
QUICK := specs tensorforce agents policies/test_heads.py policies/test_policy.py net records files tracking \
	platforms/kubernetes/manifests experiments/run_folder experiments/test_lifecycle.py \
	serve/messages serve/routing serve/test_endpoint.py docs test_words.py

quick: $(VENV)/.installed-dev  ## The tests of the inner loop: under a minute
	$(BIN)/python -m pytest -n 2 -q -m "not learning and not faults and not kubernetes" $(addprefix tests/,$(QUICK))

test: export STEPPE_CLIENT_VENVS = $(subst $(space),:,$(addprefix $(CURDIR)/,$(CLIENTS)))
test: $(VENV)/.installed-dev $(addsuffix /.installed,$(CLIENTS))  ## The tests, without the slow ones
	$(BIN)/python -m pytest -n 2 -m "not learning and not faults and not kubernetes"

test-slow: $(VENV)/.installed-dev  ## Learning scores and fault loops
	$(BIN)/python -m pytest -n 2 -m "(learning or faults) and not kubernetes"

# In one process: the testbed's nodes share this machine. Whatever ends the tests, a testbed they started ends too.
test-kubernetes: export STEPPE_TEST_KUBECONFIG := $(or $(STEPPE_TEST_KUBECONFIG),$(KUBECONFIG))
test-kubernetes: $(VENV)/.installed-dev  ## All of it on a real Kubernetes, which is started for it and ended again; skipped where there is none
	@if missing=$$($(BIN)/python tests/support/kube_testbed.py missing); then \
		echo "skipped: $$missing"; \
	else \
		trap '$(BIN)/python tests/support/kube_testbed.py down' EXIT; trap 'exit 130' INT TERM; \
		$(BIN)/python -m pytest -m "kubernetes and not long"; \
	fi

check: format-check lint types layers  ## Formatting, lint, types and layering, all without changing a file

format: $(VENV)/.installed-dev  ## Formats the code
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

.PHONY: format-check
format-check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check $(SOURCES)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check $(SOURCES)

types: $(VENV)/.installed-dev
	$(BIN)/mypy

layers: $(VENV)/.installed-dev
	$(BIN)/lint-imports

bench: $(VENV)/.installed-dev $(PEERS)/.installed $(RLLIB)/.installed $(REJAX)/.installed $(SERVING)/.installed  ## Steppe against its peers, interleaved (about an hour and a half)
	STEPPE_PEERS_VENV=$(PEERS) STEPPE_RLLIB_VENV=$(RLLIB) STEPPE_REJAX_VENV=$(REJAX) STEPPE_SERVING_PEERS_VENV=$(SERVING) $(BIN)/python benchmarks/run_all.py

clean:  ## Removes what the other targets made, but no results of yours
	rm -rf $(VENV) $(PEERS) $(RLLIB) $(REJAX) $(SERVING) $(CLIENTS) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# A half-made environment is removed, or it would be taken for a whole one the next time.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: Steppe needs Python 3.11 or newer, and $(PYTHON) is older; name another: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# Every package has its hash in the lock, and pip refuses any other file: what builds packages first, since some are built here.
define install-locked
	@$(BIN)/python locked_requirements.py build > $(VENV)/build.txt
	@$(BIN)/python locked_requirements.py $(1) > $(VENV)/wanted.txt
	@$(BIN)/pip install $(PIP_FLAGS) --require-hashes --requirement $(VENV)/build.txt
	@$(BIN)/pip install $(PIP_FLAGS) --require-hashes --no-build-isolation --requirement $(VENV)/wanted.txt
	@$(BIN)/pip install $(PIP_FLAGS) --no-deps --no-build-isolation --editable .
endef

$(VENV)/.installed: $(LOCKS) | $(VENV)/bin/python
	@echo "installing Steppe into $(VENV) (once; about a minute)"
	$(call install-locked,all)
	@touch $@

# Of torch the build without CUDA, where pip knows of one; else the usual one, with gigabytes of CUDA.
$(VENV)/.installed-dev: $(LOCKS) requirements-torch-cpu.lock | $(VENV)/bin/python
	@echo "installing Steppe and its tools into $(VENV) (once; about a minute)"
	$(call install-locked,all$(comma)dev)
	@$(BIN)/pip install $(PIP_FLAGS) --require-hashes --no-deps --requirement requirements-torch-cpu.lock 2> /dev/null || { \
		$(BIN)/python locked_requirements.py dev-torch > $(VENV)/wanted.txt && \
		$(BIN)/pip install $(PIP_FLAGS) --require-hashes --no-build-isolation --requirement $(VENV)/wanted.txt; }
	@touch $@ $(VENV)/.installed

lock:  ## Makes requirements.lock and requirements-gpu.lock anew, with uv; versions stay where they can
	$(PYTHON) locked_requirements.py --make

.venv-%-client/.installed: tests/requirements-%-client.txt
	@echo "installing an unmodified client of others, to test with, into $(@D) (once)"
	@$(PYTHON) -m venv $(@D) || { rm -rf $(@D); exit 1; }
	@$(@D)/bin/pip install $(PIP_FLAGS) --no-deps --requirement $<
	@touch $@

.venv-%/.installed: benchmarks/requirements-%.txt
	@$(PYTHON) -m venv $(@D) || { rm -rf $(@D); exit 1; }
	$(@D)/bin/pip install $(PIP_FLAGS) --requirement $<
	@touch $@
