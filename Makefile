# Make an environment and run things in it: `make up`, `make test`; everything else is listed by `make help`.
#
# Needs Python >= 3.11, make and a C++ compiler. Packages come from the lock files in requirements/,
# hashes checked; a stamp in .venv remembers what is installed, so that nothing is installed twice.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
NEW_ENOUGH := 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$name -c $(NEW_ENOUGH) 2>/dev/null && echo $$name && break; done)
PIP := $(BIN)/python -m pip --disable-pip-version-check
LOCKED := $(PIP) install --quiet --require-hashes

# What llama-cpp-python is built for. Kept once chosen: `make up` after `make install GPU=cuda` stays with cuda.
OS := $(shell uname -s)
NATIVE_GPU := $(if $(filter Darwin,$(OS)),metal,cpu)
GPU ?= $(or $(shell cat $(STAMPS)/gpu 2>/dev/null),$(NATIVE_GPU))
CMAKE_cpu := $(if $(filter Darwin,$(OS)),-DGGML_METAL=off)
CMAKE_cuda := -DGGML_CUDA=on
CMAKE_rocm := -DGGML_HIP=on
CMAKE_vulkan := -DGGML_VULKAN=on
CMAKE_metal := -DGGML_METAL=on
ifeq ($(filter $(GPU),cpu cuda rocm vulkan metal),)
$(error GPU=$(GPU) is not one of cuda, rocm, vulkan, metal, cpu)
endif

.PHONY: help up install test check bench bench-overload bench-engine docs lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1: /p' Makefile

up: install ## store, worker and door on loopback until Ctrl-C; MODEL=PATH or org/repo, GPU=cuda|rocm|vulkan|metal|cpu
	@exec $(BIN)/penstock up $(if $(MODEL),--model '$(MODEL)')

install: $(STAMPS)/penstock ## everything that the rooms need, in .venv; GPU=cuda|rocm|vulkan|metal|cpu

# Most tests wait for processes of their own, so two share a machine well. One file's tests stay together.
PROCESSES ?= 2

test: $(STAMPS)/penstock $(STAMPS)/dev ## all tests, PROCESSES=2 at once; PYTEST='-k words' for some
	$(BIN)/pytest -n $(PROCESSES) --dist loadfile $(PYTEST)

check: $(STAMPS)/penstock $(STAMPS)/dev ## linters, types, import rules, generated pages, compose.yaml
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.generated_pages --check
	$(BIN)/pytest -q tests/house

bench: $(STAMPS)/penstock $(STAMPS)/bench ## the benchmarks, results in bench/results; BENCH=queue, engine, door, overload or fairness
	$(BIN)/python -m bench $(BENCH)

bench-overload: $(STAMPS)/penstock $(STAMPS)/bench ## experiments E1 to E8 in virtual time, about 15 minutes; FULL=1 for three seeds
	$(BIN)/python -m bench.overload $(if $(FULL),--full)

bench-engine: $(STAMPS)/penstock $(STAMPS)/bench ## the engine beside its ceiling and a C++ server; ENGINE='--models 135m' for more
	$(BIN)/python -m bench.engine $(ENGINE)

docs: $(STAMPS)/penstock ## what the docs repeat of the code: .env.example, docs/settings.md, tables of keys and metrics
	$(BIN)/python -m tools.generated_pages

clean: ## remove the environment
	rm -rf $(VENV)

# --- what is installed ---------------------------------------------------------------------------

$(STAMPS)/build: requirements/build.txt
	@$(or $(PYTHON),false) -c $(NEW_ENOUGH) || { \
	  echo 'no Python 3.11 or newer found$(PYTHON:%=: % is none); name one: make PYTHON=…' >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo 'no virtual environment could be made; on Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }
	$(LOCKED) -r $<
	@mkdir -p $(STAMPS)
	@touch $@

$(STAMPS)/web: requirements/web.txt $(STAMPS)/build
	$(LOCKED) -r $<
	@touch $@

$(STAMPS)/worker: requirements/worker.txt $(STAMPS)/build
	$(LOCKED) -r $<
	@touch $@

$(STAMPS)/dev: requirements/dev.txt $(STAMPS)/build
	$(LOCKED) -r $<
	@touch $@

$(STAMPS)/bench: requirements/bench.txt $(STAMPS)/build
	$(LOCKED) -r $<
	@touch $@

# pip's cache of built wheels does not know of CMAKE_ARGS: only the native build goes through it.
$(STAMPS)/engine-$(GPU): requirements/engine.txt $(STAMPS)/build
	@command -v c++ g++ clang++ >/dev/null || { echo 'no C++ compiler found; on Debian and Ubuntu: apt install g++' >&2; exit 1; }
	@echo 'llama-cpp-python for $(GPU): from the cache, or built in about four minutes on two cores' >&2
	CMAKE_ARGS='$(CMAKE_$(GPU))' $(PIP) install --require-hashes --no-deps --force-reinstall \
	  $(if $(filter $(GPU),$(NATIVE_GPU)),,--no-cache-dir --no-binary llama-cpp-python) -r $<
	@rm -f $(STAMPS)/engine-*
	@echo '$(GPU)' > $(STAMPS)/gpu
	@touch $@

$(STAMPS)/penstock: pyproject.toml $(STAMPS)/web $(STAMPS)/worker $(STAMPS)/engine-$(GPU)
	@PYTHONWARNINGS=ignore $(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# --- the lock files ------------------------------------------------------------------------------

COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
  --custom-compile-command 'make lock'
ROOMS := pyproject.toml --extra web --extra worker
TOOLS := --group build --group test --group lint --group bench --group lock

lock: $(STAMPS)/build ## requirements/*.txt anew, with the newest versions that pyproject.toml allows
	$(LOCKED) -r requirements/lock.txt
	@mkdir -p build
	$(COMPILE) $(ROOMS) $(TOOLS) --upgrade -o build/union.txt
	$(COMPILE) pyproject.toml --extra web -c build/union.txt -o requirements/web.txt
	$(COMPILE) pyproject.toml --extra worker -c build/union.txt --no-emit-package llama-cpp-python -o requirements/worker.txt
	grep '^llama-cpp-python' build/union.txt | sed 's/ \\$$//' | $(COMPILE) --no-deps - -o requirements/engine.txt
	$(COMPILE) --group test --group lint -c build/union.txt -o requirements/dev.txt
	for group in bench build lock; do $(COMPILE) --group $$group -c build/union.txt -o requirements/$$group.txt; done
