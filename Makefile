# Every target sets up what it needs, once: .venv with the library, if it is here, and the project, by uv or else pip.
PYTHON ?= python3
SEEDS ?= 0 1 2 3 4
BIN := .venv/bin
PYTEST = "$(CURDIR)/$(BIN)/python" -m pytest
PARALLEL := --numprocesses auto --maxprocesses 4 --dist loadfile
# threads that wait sleep: on two busy cores, training the built-in data took 70 s of CPU time, and 233 s otherwise
export OMP_WAIT_POLICY ?= passive
LIBRARY := $(wildcard packages/lightkeeper)
EDITABLE := $(LIBRARY:%=%[images,cli]) .[explore,test]
INSTALL := $(EDITABLE:%=--editable "%")
# CUDA is most of torch's download: without an NVIDIA GPU, the CPU wheels are taken, if PyTorch's index answers
PROBE := import urllib.request as u; u.urlopen("https://download.pytorch.org/whl/cpu/torch/", timeout=9)
CPU_WHEELS := $(PYTHON) -c '$(PROBE)' 2>/dev/null && echo --torch-backend cpu
BACKEND = $(if $(UV_TORCH_BACKEND),,$(shell command -v nvidia-smi >/dev/null || { $(CPU_WHEELS); }))
# Jupyter refuses to run as root, as whom containers often do, unless it is told to
ALLOW_ROOT = $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: help fit test test-slow stress benchmark gpu docs lock lint notebook
help:
	@echo "make fit [ARGS='--trainer.max_epochs 3']   train on the built-in data"
	@echo "make test                                  lint, types and the fast tests"
	@echo "make test-slow                             the long tests, such as whole notebooks and launchers"
	@$(if $(LIBRARY),,: )echo "make stress                                kill trainings a hundred times and compare every bit"
	@$(if $(wildcard benchmarks),,: )echo "make benchmark                             this machine's speed beside a plain PyTorch loop"
	@$(if $(wildcard scripts/gpu.sh),,: )echo "make gpu [SEEDS='0 1 2 3 4']               what needs a GPU: its tests, its speed, CIFAR-10 for each seed"
	@$(if $(wildcard zensical.toml),,: )echo "make docs                                  build the site of docs/ in site/"
	@echo "make lock                                  pin every package with its hashes in requirements.lock"
	@$(if $(wildcard notebooks),,: )echo "make notebook [CHECKPOINT=FILE]             the tutorial in Jupyter, or a look into a checkpoint"

.venv/installed: requirements.txt pyproject.toml $(LIBRARY:%=%/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	@echo "installing into .venv, which takes some minutes"
	$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv && $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python $(BACKEND) $(INSTALL) \
		|| $(BIN)/python -m pip install --disable-pip-version-check $(INSTALL)
	@touch $@

fit: .venv/installed
	$(BIN)/python -m project.fit $(ARGS)

test: lint
	$(PYTEST) $(PARALLEL) $(ARGS)
	$(if $(ARGS),,$(if $(LIBRARY),cd $(LIBRARY) && $(PYTEST) $(PARALLEL)))

test-slow: .venv/installed
	$(PYTEST) -m slow $(ARGS)
	$(if $(ARGS),,$(if $(LIBRARY),cd $(LIBRARY) && $(PYTEST) -m slow))

stress: .venv/installed
	$(if $(LIBRARY),cd $(LIBRARY) && "$(CURDIR)/$(BIN)/python" -m tests.stress $(ARGS))

benchmark: .venv/installed
	$(BIN)/python -m benchmarks $(ARGS)

gpu: .venv/installed
	PATH="$(CURDIR)/$(BIN):$$PATH" SEEDS="$(SEEDS)" bash scripts/gpu.sh

docs: .venv/installed
	$(BIN)/zensical build --strict

lock: .venv/installed
	$(LIBRARY:%=$(BIN)/uv build --quiet --wheel --out-dir build %)
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --all-extras pyproject.toml \
		$(LIBRARY:%=--find-links build --no-emit-find-links) --no-emit-package lightkeeper \
		--output-file requirements.lock --custom-compile-command 'make lock'

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/typos
	$(BIN)/mypy
	$(if $(LIBRARY),cd $(LIBRARY) && "$(CURDIR)/$(BIN)/mypy")

notebook: .venv/installed
	$(BIN)/jupyter lab $(ALLOW_ROOT) $(wildcard notebooks/$(if $(CHECKPOINT),explore_checkpoint,tutorial).ipynb)
