# Every target sets up what it needs: .venv with what requirements.txt lists, once.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help fit test test-slow torture benchmark gpu lint notebook
help:
	@echo "make fit [ARGS='--trainer.max_epochs 3']   train on the built-in data"
	@echo "make test                                  lint, types and the fast tests"
	@echo "make test-slow                             the long tests"
	@echo "make torture                               kill trainings a hundred times and compare every bit"
	@echo "make benchmark                             this machine's figures beside a plain PyTorch loop"
	@echo "make gpu                                   what needs a GPU: its tests, and CIFAR-10 in full"
	@echo "make notebook                              explore a checkpoint in Jupyter"

.venv/installed: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.txt
	@touch $@

fit: .venv/installed
	$(BIN)/python -m project.fit $(ARGS)

test: lint
	$(BIN)/python -m pytest $(ARGS)

test-slow: .venv/installed
	$(BIN)/python -m pytest -m slow $(ARGS)

torture: .venv/installed
	$(BIN)/python -m tests.killing $(ARGS)

benchmark: .venv/installed
	$(BIN)/python -m project.benchmark $(ARGS)

gpu: .venv/installed
	$(BIN)/python -m pytest -rs tests/distributed/test_sync_batchnorm.py
	$(BIN)/python -m project.fit --config configs/cifar10_resnet18.yaml --config configs/hardware/gpu.yaml --name cifar10_gpu

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

notebook: .venv/installed
	$(BIN)/jupyter lab notebooks/explore_checkpoint.ipynb
