# Every target sets up what it needs: .venv with what requirements.txt lists, once.
PYTHON ?= python3
SEEDS ?= 0 1 2 3 4
BIN := .venv/bin

.PHONY: help fit test test-slow torture benchmark gpu lint notebook
help:
	@echo "make fit [ARGS='--trainer.max_epochs 3']   train on the built-in data"
	@echo "make test                                  lint, types and the fast tests"
	@echo "make test-slow                             the long tests"
	@echo "make torture                               kill trainings a hundred times and compare every bit"
	@echo "make benchmark                             this machine's figures beside a plain PyTorch loop"
	@echo "make gpu [SEEDS='0 1 2 3 4']               what needs a GPU: its tests, its speed, CIFAR-10 for each seed"
	@echo "make notebook                              explore a checkpoint in Jupyter"

.venv/installed: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.txt
	@touch $@

fit: .venv/installed
	$(BIN)/python -m project.fit $(ARGS)

test: lint
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 $(ARGS)

test-slow: .venv/installed
	$(BIN)/python -m pytest -m slow $(ARGS)

torture: .venv/installed
	$(BIN)/python -m tests.killing $(ARGS)

benchmark: .venv/installed
	$(BIN)/python -m project.benchmark $(ARGS)

gpu: .venv/installed
	$(BIN)/python -m project.benchmark --output gpu.json --plot gpu.png
	for seed in $(SEEDS); do \
		$(BIN)/python -m project.fit --config configs/cifar10_fast.yaml --seed_everything $$seed --name cifar10_fast_$$seed || exit 1; \
		$(BIN)/python -m project.fit --config configs/cifar10_resnet18.yaml --config configs/hardware/gpu.yaml \
			--data.resident true --model.compile true --data.batch_size 512 --model.optimizer.lr 0.4 \
			--trainer.max_epochs 30 --seed_everything $$seed --name cifar10_resnet18_$$seed || exit 1; \
	done
	$(BIN)/python docs/seeds.py runs/cifar10_fast_*
	$(BIN)/python docs/seeds.py runs/cifar10_resnet18_*
	$(BIN)/python -m pytest -rs tests/test_gpu.py tests/distributed/test_sync_batchnorm.py

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

notebook: .venv/installed
	$(BIN)/jupyter lab notebooks/explore_checkpoint.ipynb
