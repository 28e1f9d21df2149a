# Every target prepares what it needs: `make train` and `make test` work in a fresh clone.
VENV ?= .venv
PYTHON ?= python3
NP ?= 2
LAUNCHER ?= auto
CONFIG ?= examples/digits.toml
REQUIRE ?=
PYTEST ?=

BIN := $(VENV)/bin
# As root, and with more ranks than cores, as in a container
MPI_ENV := OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
	OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1 PATH="$(abspath $(BIN)):$$PATH"
# A rank that waits in MPI can't be interrupted, so the timeout must come from a thread
MPI_PYTEST := python -m mpi4py -m pytest tests/mpi -p no:cacheprovider --timeout=120 --timeout-method=thread $(PYTEST)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup setup-run train check doctor test test-unit test-reduction-7 kernels cuda lint clean

help: ## this list
	@sed -n 's/^\([a-zA-Z0-9N-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F'\t' '{printf "  make %-18s %s\n", $$1, $$2}'
	@echo
	@echo "  NP=$(NP)  CONFIG=$(CONFIG)  LAUNCHER=$(LAUNCHER)  VENV=$(VENV)  PYTHON=$(PYTHON)  PYTEST='-k name'"

setup-run: # what training needs, without the development tools
	@BITRING_DEV=0 PYTHON="$(PYTHON)" toolkit/install/setup.sh "$(VENV)"

setup: ## system packages, virtual environment, requirements, Horovod; at once when all is there
	@PYTHON="$(PYTHON)" toolkit/install/setup.sh "$(VENV)"

train: setup-run ## train CONFIG over NP ranks of this host
	@$(BIN)/bitring train $(CONFIG) -np $(NP) --launcher $(LAUNCHER)

check: setup-run ## does what is installed work? ten seconds; REQUIRE=horovod,glpk,mpi refuses gaps
	@$(BIN)/bitring check --require "$(REQUIRE)"

doctor: setup-run ## what is installed, what is missing, how to get it
	@$(BIN)/bitring doctor

test: setup test-unit test-1 test-2 test-3 test-4 test-reduction-7 ## all tests: in one process, then over 1, 2, 3, 4 ranks

test-unit: setup ## tests that need no MPI job
	$(BIN)/python -m pytest tests -m "not mpi and not bench" --ignore=tests/mpi $(PYTEST)

# test-N:
test-%: setup
	$(MPI_ENV) mpirun --bind-to none -np $* $(MPI_PYTEST)

test-N: ## the same MPI tests over N ranks, whatever N is: make test-5
	@echo "write a number for N: make test-5"; exit 2

test-reduction-7: setup # reductions over a number of ranks that is neither a power of two nor small
	$(MPI_ENV) mpirun --bind-to none -np 7 $(MPI_PYTEST) -k "test_graphs or oracle"

kernels: ## the compiled kernels (cuda/); needs g++ 12 or newer alone
	@$(MAKE) -s -C cuda kernels

cuda: ## the same for CUDA devices (train.device = "cuda"); needs nvcc
	@$(MAKE) -s -C cuda cuda

lint: setup ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/mypy toolkit simulator

clean: ## remove what tools leave behind; the virtual environment and runs/ stay
	rm -rf build cuda/build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path "./$(VENV)" -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
