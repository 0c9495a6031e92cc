# make train | test | lint | pretrain | bench-gpu; arguments for the command go into ARGS="…".
# Each target first creates .venv and installs what is missing, once.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

# first interpreter that is new enough; `make PYTHON=/path/to/python3.12` chooses another
ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell for python in python3 python3.12 python3.13 python3.11 python3.14 python; do \
	$$python $(ENOUGH) >/dev/null 2>&1 && echo $$python && break; done)

.PHONY: help train test lint pretrain bench-gpu install
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "%-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

train: $(STAMP) ## the main job; ARGS="algorithm=grpo seed=3"
	$(BIN)/python run.py $(ARGS)

pretrain: $(STAMP) ## warm start by masked-diffusion SFT
	$(BIN)/python run.py job=pretrain $(ARGS)

test: $(STAMP) ## the test suite; ARGS="-k clipping"
	$(BIN)/python -m pytest -n auto --maxprocesses 4 $(ARGS)

lint: $(STAMP) ## style, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy stabledrl run.py benchmarks
	$(BIN)/lint-imports

bench-gpu: $(STAMP) ## speed and memory of an 8B model on this GPU; ARGS="--tiny" on a CPU
	$(BIN)/python benchmarks/gpu.py $(ARGS)

install: $(STAMP) ## create .venv and install what is missing

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) $(ENOUGH) 2>/dev/null || { echo "error: Python 3.11 or newer" \
		"is needed; install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "error:" \
		"$(PYTHON) cannot create a virtual environment (Debian: apt install python3-venv)" >&2; exit 1; }
	@$(BIN)/python $(ENOUGH) || { echo "error: $(VENV) holds a Python older than 3.11;" \
		"delete it and run make again" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,sweep,dashboard,lora,math,parquet,reasoning]'
	@touch $@
