# Everything a person types at this project. `make run` and `make test` set up all they need.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
RLLIB := .venv-rllib
SOURCES := src tests benchmarks docs
DEMO := demo
PIP_FLAGS := --quiet --disable-pip-version-check

.PHONY: help run test test-slow check format lint types layers bench clean

help:  ## What can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: $(VENV)/.installed  ## Trains PPO on CartPole-v1 until it is solved, in a demo project
	@mkdir -p $(DEMO)
	@cd $(DEMO) && { test -f steppe.json || ../$(BIN)/steppe init --name demo > /dev/null; }
	@cd $(DEMO) && ../$(BIN)/steppe experiment new -f cartpole_ppo -n cartpole --force --start
	@echo 'these lie in $(DEMO)/; to use the commands: cd $(DEMO) && source ../$(BIN)/activate'

test: $(VENV)/.installed-dev  ## The tests, without the slow ones
	$(BIN)/python -m pytest -n 2 -m "not learning and not faults"

test-slow: $(VENV)/.installed-dev  ## Learning scores and fault loops
	$(BIN)/python -m pytest -n 2 -m "learning or faults"

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

bench: $(VENV)/.installed-dev $(PEERS)/.installed $(RLLIB)/.installed  ## Steppe against its peers, interleaved (about an hour and a half)
	STEPPE_PEERS_VENV=$(PEERS) STEPPE_RLLIB_VENV=$(RLLIB) $(BIN)/python benchmarks/run_all.py

clean:  ## Removes what the other targets made, but no results of yours
	rm -rf $(VENV) $(PEERS) $(RLLIB) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# A half-made environment is removed, or it would be taken for a whole one the next time.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: Steppe needs Python 3.11 or newer, and $(PYTHON) is older; name another: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.installed: pyproject.toml requirements.lock | $(VENV)/bin/python
	@echo "installing Steppe into $(VENV) (once; about a minute)"
	@$(BIN)/pip install $(PIP_FLAGS) --constraint requirements.lock --editable ".[all]"
	@touch $@

$(VENV)/.installed-dev: pyproject.toml requirements.lock | $(VENV)/bin/python
	@echo "installing Steppe and its tools into $(VENV) (once; about a minute)"
	@$(BIN)/pip install $(PIP_FLAGS) --constraint requirements.lock --editable ".[all,dev]"
	@touch $@ $(VENV)/.installed

.venv-%/.installed: benchmarks/requirements-%.txt
	@$(PYTHON) -m venv $(@D) || { rm -rf $(@D); exit 1; }
	$(@D)/bin/pip install $(PIP_FLAGS) --requirement $<
	@touch $@
