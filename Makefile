# make demo    train, measure and compare on this machine, in minutes
# make test    every test, the real-Slurm ones included
# make lint    lint, types and import rules
# make check   lint, types, import rules and the fast tests, in a minute or two
# make bench   speed compared with other packages
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := .venv-demo

.PHONY: demo test lint check bench lock clean

$(STAMP): requirements/bootstrap.txt requirements/dev.txt pyproject.toml tools/make-venv
	tools/make-venv $(PYTHON) $(VENV) requirements/dev.txt
	touch $@

# Packages for users, without development tools.
$(DEMO)/.installed: requirements/bootstrap.txt requirements/report.txt pyproject.toml tools/make-venv
	tools/make-venv $(PYTHON) $(DEMO) requirements/report.txt
	touch $@

# torch.compile needs a C++ compiler and Python's headers on the CPU.
COMPILER := g++=g++ header:Python.h=$(PYTHON)-dev
# Horovod is built from source over MPI; MXNet's wheel needs libquadmath.
PARALLEL := mpicxx=libopenmpi-dev mpirun=openmpi-bin cmake=cmake g++=g++ lib:libquadmath.so.0=libquadmath0 lib:libgomp.so.1=libgomp1
SLURM := slurmctld=slurm-wlm slurmd=slurm-wlm sbatch=slurm-client slurmdbd=slurmdbd munged=munge mariadbd=mariadb-server \
  lib:libpmix.so=libpmix-dev shellcheck=shellcheck

# MuJoCo's images without a display: EGL, drawn by the CPU.
DRAWING := lib:libEGL.so.1=libegl1 lib:libGL.so.1=libgl1 lib:libGL.so.1=libgl1-mesa-dri

BROWSER := chromium=chromium chromedriver=chromium-driver
# The seconds of each test of the last run of all, outside of the clone.
TIMES := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/hpcrl/tests.xml

demo: $(DEMO)/.installed
	PYTHON=$(DEMO)/bin/python tools/debian-packages "lazy PyTorch" $(COMPILER)
	tools/demo $(DEMO)/bin/hpcrl

# Three workers for two cores: the one that has the tests on Slurm mostly waits.
test: $(STAMP)
	tools/debian-packages "the tests on a real Slurm" $(SLURM)
	PYTHON=$(BIN)/python tools/debian-packages "lazy PyTorch" $(COMPILER)
	tools/debian-packages "Horovod and MXNet" $(PARALLEL)
	tools/debian-packages "the box slider" $(DRAWING)
	tools/debian-packages "the report in a browser" $(BROWSER)
	tools/debian-packages "commands with modules" modulecmd=environment-modules
	$(BIN)/python -m pytest tests -n 3 --durations=60 --durations-min=5 --junitxml=$(TIMES)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint
	$(BIN)/python -m pytest tests -n 2 -m "not slow and not slurm"

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# Pins with hashes and without addresses.
lock: $(STAMP)
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url --extra dev --extra bench pyproject.toml -o requirements/dev.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url --extra report --extra build -c requirements/dev.txt pyproject.toml -o requirements/report.txt
	$(BIN)/hpcrl env lock $(basename $(notdir $(wildcard envs/*.yaml)))

clean:
	rm -rf $(VENV) $(DEMO) demo .mypy_cache .ruff_cache .hypothesis .import_linter_cache
