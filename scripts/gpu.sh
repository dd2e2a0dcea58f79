#!/usr/bin/env bash
# Measures what needs a GPU: its tests, its speed beside plain loops, CIFAR-10 to 94% and to 96% for each of $SEEDS. Finished runs are kept.
set -euo pipefail

python -m pytest -rs tests/test_gpu.py
python -m benchmarks --output gpu.json
for goal in 94 96; do
    for seed in ${SEEDS:-0 1 2 3 4}; do
        [ -f "runs/cifar10_${goal}_$seed/metrics.json" ] ||
            python -m project.fit --config "configs/cifar10_$goal.yaml" --config configs/hardware/gpu.yaml \
                --model.compile true --data.device_cache true --trainer.log_every_n_steps 50 \
                --seed_everything "$seed" --name "cifar10_${goal}_$seed"
    done
    python scripts/seeds.py runs/cifar10_"$goal"_*
done
