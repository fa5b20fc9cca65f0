# make demo   two real runs on this machine: four boards peer to peer, then four boards through a Flower coordinator
# make test   everything that a change must pass
# Both make .venv, install what is missing and build the kernels; when nothing has changed they start at once. The demo needs half of
# the packages.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
# Any of the supported Pythons; override with make PYTHON=/path/to/python3.12 ...
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
CXX_FOUND = $(shell for c in "$${CXX:-}" c++ g++ clang++; do [ -n "$$c" ] && command -v $$c && break; done)

TOOLS := $(VENV)/.tools
DEPENDENCIES := $(VENV)/.dependencies
DEVELOPER := $(VENV)/.developer
NATIVE := $(VENV)/.native
READY := $(NATIVE) $(DEPENDENCIES)
ALL := $(READY) $(DEVELOPER)
# Kernels are compiled while packages come; that needs a few tools, which come first. Several goals are one after the other.
ifeq ($(MAKELEVEL)$(words $(MAKECMDGOALS)),01)
MAKEFLAGS += --jobs=2
endif
NATIVE_SOURCES := CMakeLists.txt $(shell find edgegossip/native/src -type f)
# An editable install keeps a list of the modules: it is made anew when one comes or goes.
MODULES := $(VENV)/.modules-$(shell find edgegossip -name '*.py' | sort | cksum | cut -d' ' -f1)
PIP := $(BIN)/python -m pip --disable-pip-version-check
# pip would compile every module that it unpacks: a run imports a quarter of them.
LOCKED := $(PIP) install --require-hashes --no-deps --no-compile
IMPORTS := import torch, flwr.server, flwr.client, matplotlib.pyplot
# $(call step,WHAT,LOG) COMMAND: one line that says how far it is.
step = $(BIN)/python scripts/progress.py "$(1)" build/log/$(2).txt
# Workers of the test suite: one more than the cores of a small machine, as tests of processes and networks wait half of their time.
JOBS ?= 3
# Not $(MAKE), whose lines `make -n` would run.
AGAIN := $(MAKE) --no-print-directory
SECONDS ?= 60
# Empty systems in which wheels are tried: made once by debootstrap. ARCH=arm64 tries those of boards, emulated.
SUITES ?= bookworm trixie
ROOTS = $(SUITES:%=build/roots/%$(ARCH:%=-%))
# The Arm core whose cycles are predicted: a72 or a76.
CORE ?= a72

# The parts of `make test-slow`, which .github/workflows/slow.yml runs each week.
PARTS := runs simulator laws machines browser rest examples coverage
SLOW_runs := tests/e2e tests/flower tests/mesh tests/lab/bench tests/test_notebook.py
SLOW_simulator := tests/lab/sim tests/studies
SLOW_laws := tests/codecs tests/gossip tests/engine tests/conformance
SLOW_machines := tests/native tests/fuzz tests/fleet tests/deploy tests/checkpoint tests/update tests/test_packaging.py
SLOW_browser := tests/report tests/test_documentation.py tests/test_code_blocks.py tests/test_python_page.py
SLOW_rest := tests $(foreach part,runs simulator laws machines browser,$(SLOW_$(part):%=--ignore=%))
SLOW_examples := tests -m "hypothesis and not slow"
# The branches of what decides, by its own tests: a tracer more than doubles their time.
COVERED := layout.py frame.py codecs gossip engine security
SLOW_coverage := --cov --cov-branch --cov-report= -m "not slow" tests/test_layout.py tests/test_frame.py tests/codecs tests/gossip tests/engine tests/security tests/conformance tests/mesh/security tests/fleet/test_store.py
SLOW = $(if $(PART),$(SLOW_$(PART)),tests)

.PHONY: help demo docs test tests test-slow image-smoke fuzz arm-cost lint types bytecode format install wheel wheel-smoke sbom locks clean

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

demo: $(READY) ## train on this machine, both ways, and show where the results lie
	@$(BIN)/edgegossip demo

# Tests start some hundred processes: each would compile all of the package again if it could not keep bytecode. So
# would each of pytest's workers all tests; that is done once, beside mypy.
test: $(ALL) ## formatting, lint, types, import rule and tests
	@MAKEFLAGS= $(AGAIN) --jobs=2 lint types bytecode
	@OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=20 tests

tests: test

test-slow: $(ALL) ## the tests that take long or need a developer's tools, all or one part: PART=simulator, see Makefile
	@[ -n '$(SLOW)' ] || { echo "PART=$(PART): no such part; there are $(PARTS)" >&2; exit 1; }
	@[ -n "$(filter-out runs,$(PART))" ] || $(call step,Flower's simulation engine,simulation) $(LOCKED) -r locks/simulation.txt
	@OMP_NUM_THREADS=1 $(if $(filter examples,$(PART)),HYPOTHESIS_PROFILE=explore) $(BIN)/python -m pytest -m slow --durations=20 $(SLOW)
	@[ "$(PART)" != coverage ] || $(BIN)/python scripts/branch_coverage.py 95 $(COVERED:%=edgegossip/%)
	@[ -n "$(PART)" ] || for part in examples coverage; do $(AGAIN) test-slow PART=$$part; done

image-smoke: $(ALL) ## an image from nothing to a training board, emulated; needs root; goes on at the stage where it stopped
	@$(BIN)/python -m lab.smoke $(SMOKE)

docs: ## build the documentation as a site: site/index.html, which needs no server
	@test -x $(VENV)/bin/zensical || $(PIP) --quiet install "zensical>=0.0.73,<0.2"
	@$(BIN)/python scripts/site.py && $(BIN)/zensical build --strict

fuzz: $(ALL) ## fuzz the native decoders under clang's sanitizers; SECONDS=60
	@$(BIN)/python -m tests.fuzz.native.run --seconds $(SECONDS)

arm-cost: $(ALL) ## predict cycles of int8 and the codecs on an Arm core, beside torch; CORE=a72 or a76
	@$(BIN)/python -m lab.results.arm_cost $(CORE)

lint: $(ALL)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format"; exit 1; }

types: $(ALL)
	@$(BIN)/mypy
	@cd scripts && $(abspath $(BIN))/mypy --config-file mypy.ini .

bytecode: $(ALL)
	@OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q --collect-only tests >/dev/null || :

format: $(ALL) ## format the Python files
	@$(BIN)/ruff check --fix-only --quiet . && $(BIN)/ruff format .

install: $(ALL) ## only make .venv and build the kernels

wheel: $(ALL) ## dist/*.whl for this machine's Python and architecture
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m build --wheel --no-isolation --outdir dist .

wheel-smoke: $(ROOTS:%=%/etc/debian_version) ## install what is in dist/ into empty Debians 12 and 13 (SUITES, ARCH), and train; needs root
	@for root in $(ROOTS); do scripts/wheel_smoke.sh dist $$root; done

build/roots/%/etc/debian_version:
	@command -v debootstrap >/dev/null || { echo "wheels are tried in systems that debootstrap makes: apt install debootstrap" >&2; exit 1; }
	@mkdir -p build/roots && debootstrap $(ARCH:%=--arch=%) --variant=minbase --include=python3-venv,ca-certificates \
	    $(*:%-$(ARCH)=%) build/roots/$* >build/roots/$*.log || \
	  { tail -n 3 build/roots/$*.log >&2; exit 1; }

sbom: $(ALL) ## dist/*.cdx.json (CycloneDX): what the wheel needs and, with IMAGE=base.img, what that image has
	@mkdir -p dist && $(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --of JSON -o dist/edgegossip.cdx.json locks/laptop.txt
	@[ -z "$(IMAGE)" ] || $(BIN)/python scripts/sbom.py "$(IMAGE)" "dist/$(notdir $(IMAGE)).cdx.json"

locks: $(ALL) ## make locks/ anew after a change of constraints.txt or pyproject.toml
	@$(BIN)/python scripts/lock_developers.py $(PIP_FIND_LINKS)

clean: ## remove .venv and everything built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.* coverage.json

# The environment: nothing that a lock does not know by its hash.
$(TOOLS): locks/kernels.txt
	@[ -n "$(PYTHON)" ] || { echo "edgegossip needs Python 3.11, 3.12 or 3.13, and none was found; set PYTHON=/path/to/python3" >&2; exit 1; }
	@[ -x $(BIN)/pip ] || { echo "environment: $(VENV)"; $(PYTHON) -m venv $(VENV); } || \
	  { rm -rf $(VENV); echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@$(call step,build tools,tools) $(LOCKED) -r locks/kernels.txt
	@touch $@

# Where pip finds torch for the CPU (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL), that; else PyPI's, which brings CUDA on x86-64.
$(DEPENDENCIES): $(TOOLS) locks/laptop.txt locks/container.txt locks/torch-cpu.txt locks/torch.txt locks/cuda.txt
	@$(call step,packages,packages) $(LOCKED) -r locks/laptop.txt -r locks/container.txt
	@$(call step,PyTorch,torch) $(SHELL) -c '$(LOCKED) -r locks/torch-cpu.txt || $(LOCKED) -r locks/torch.txt'
	@if $(BIN)/python -c 'import sys; from importlib.metadata import requires; sys.exit(not any("nvidia" in r or "cuda" in r for r in requires("torch")))'; \
	  then echo "this PyTorch wants CUDA: 4 GB of disk (docs/howto/install.md says how to do without)"; $(call step,CUDA,cuda) $(LOCKED) -r locks/cuda.txt; fi
	@$(call step,bytecode,bytecode) $(BIN)/python -c '$(IMPORTS)'
	@touch $@

# Every extra, and what tests and documentation need.
$(DEVELOPER): $(DEPENDENCIES) locks/developer.txt
	@$(call step,packages for development,developer) $(LOCKED) -r locks/developer.txt
	@touch $@

# The package itself, editable: Python changes are live, C++ changes are built by the next make.
$(MODULES): $(TOOLS)
	@rm -f $(VENV)/.modules-* && touch $@

$(NATIVE): $(TOOLS) $(MODULES) $(NATIVE_SOURCES)
	@[ -n "$(CXX_FOUND)" ] || { echo "edgegossip builds its C++ kernels here and found no C++ compiler; on Debian and Ubuntu: apt install g++" >&2; exit 1; }
	@$(BIN)/python -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || \
	  { echo "edgegossip builds its C++ kernels here and found no Python.h; on Debian and Ubuntu: apt install python3-dev" >&2; exit 1; }
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(call step,C++ kernels,kernels) $(PIP) --verbose install --no-build-isolation --no-deps --editable .
	@touch $@
