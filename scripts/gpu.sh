#!/usr/bin/env bash
# Measures what needs a GPU: its tests, its speed beside plain loops, CIFAR-10 for each of $SEEDS. Finished runs are kept.
set -euo pipefail

python -m benchmarks --output gpu.json
for seed in ${SEEDS:-0 1 2 3 4}; do
    fast=cifar10_fast_$seed resnet18=cifar10_resnet18_$seed
    [ -f "runs/$fast/metrics.json" ] ||
        python -m project.fit --config configs/cifar10_fast.yaml --seed_everything "$seed" --name "$fast"
    [ -f "runs/$resnet18/metrics.json" ] ||
        python -m project.fit --config configs/cifar10_resnet18.yaml --config configs/hardware/gpu.yaml \
            --data.device_cache true --model.compile true --data.batch_size 512 --model.optimizer.lr 0.4 \
            --trainer.max_epochs 30 --seed_everything "$seed" --name "$resnet18"
done
python scripts/seeds.py runs/cifar10_fast_*
python scripts/seeds.py runs/cifar10_resnet18_*
python -m pytest -rs tests/test_gpu.py
