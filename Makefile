# `make` shows what there is. Everything lives in the clone: .venv, .cache, dist.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup setup-dev lock locks tune lint sanity unit measures molecule ends test test-real soak build clean
export PYTHONNOUSERSITE := 1
export PIP_USER := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export LC_ALL := C.UTF-8
unexport PYTHONPATH PYTHONHOME

WORKERS ?= 2
ARGS ?= -e nccl_channels=2
SCENARIOS ?= $(patsubst extensions/molecule/%/molecule.yml,%,$(wildcard extensions/molecule/*/molecule.yml))
VENV := . .venv/bin/activate &&
PIP := .venv/bin/python -m pip install --quiet $(if $(wildcard requirements.lock),-c requirements.lock)
SUITABLE := import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.setup ## .venv with what the controller needs
.venv/.setup: requirements.txt $(wildcard requirements.lock)
	@for python in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	    if "$$python" -c '$(SUITABLE)' 2>/dev/null; then found=$$python; break; fi; done; \
	if [ -z "$$found" ]; then \
	    echo "No Python 3.11 to 3.13 with venv found; python3 is: $$(python3 --version 2>&1)." >&2; \
	    echo "Install one (Debian, Ubuntu: apt install python3-venv), or name it: make setup PYTHON=/path/to/python3" >&2; exit 1; fi; \
	[ -x .venv/bin/python ] && .venv/bin/python -c '$(SUITABLE)' 2>/dev/null || "$$found" -m venv --clear .venv
	@$(PIP) -r requirements.txt
	@touch $@

setup-dev: .venv/.setup-dev ## setup, and what lint and tests need
.venv/.setup-dev: .venv/.setup requirements-dev.txt
	@$(PIP) -r requirements-dev.txt
	@touch $@

lock: setup-dev ## requirements.lock from what .venv has (ansible-core goes by the Python version: see requirements.txt)
	@{ echo "# Constraints for all that make installs. make lock writes this file."; .venv/bin/python -m pip freeze --exclude ansible-core; } > $@.new
	@mv $@.new requirements.lock

locks: setup-dev ## lock files and flag lists of the SGLang versions that role sglang ships, anew from PyPI
	@.venv/bin/python tests/versions/locks
	@.venv/bin/python tests/versions/flags

tune: setup ## the lab: tune.yml on a simulated SGLang, from a fresh start; ARGS="-e nccl_channels=2"
	@$(VENV) ansible-playbook tune.yml -e lab_reset=true $(ARGS)

lint: setup-dev ## ruff, yamllint, ansible-lint
	@$(VENV) ruff check . && yamllint --strict . && ansible-lint --strict

sanity: setup-dev ## ansible-test sanity on the built collection
	@tests/sanity/run

unit: setup-dev ## unit tests, in WORKERS=2 processes; those that measure apart
	@mkdir -p .cache && set -o pipefail && .venv/bin/python -m pytest -m "not measures" -n $(WORKERS) --dist loadfile 2>&1 | tee -i .cache/unit.log

measures: setup-dev ## unit tests that measure, and so want the machine for themselves
	@.venv/bin/python -m pytest -m measures tests/unit

molecule: setup-dev ## molecule scenarios on LXC containers (root, Debian or Ubuntu); SCENARIOS="nccl"
	@tests/lab/lxc.py install
	@$(VENV) for scenario in $(SCENARIOS); do molecule test --scenario-name "$$scenario" || exit 1; done

ends: setup-dev ## every way a run or a trial can end, on an LXC container (as molecule); RINGMASTER_ENDS=all: runs at three points each
	@tests/lab/lxc.py install
	@.venv/bin/python -m pytest tests/ends

ALONE = $(addprefix molecule:,$(filter tune,$(SCENARIOS))) measures # what compares times

test: setup-dev ## lint, ends, unit, molecule and sanity, two at once (LANES=1: one); what cannot run here is skipped and named
	@tests/lab/check lint ends unit $(addprefix molecule:,$(filter-out tune,$(SCENARIOS))) sanity -- $(ALONE)

test-real: setup-dev ## tune.yml, and whatever befalls a server, with a real SGLang on the CPU
	@tests/real/run

soak: setup-dev ## ends at all points, 7 times (RINGMASTER_SOAK_REPEAT): 21 strikes of each end
	@tests/soak/run

build: setup ## the collection's archive, in dist/
	@$(VENV) ansible-galaxy collection build --force --output-path dist

clean: ## remove what make and the lab made
	@rm -rf .venv .lab .cache .ansible .ruff_cache .pytest_cache dist
