#!/usr/bin/env bash
# Measures what needs a GPU: CIFAR-10 to 94% and to 96% for each of $SEEDS, its speed beside plain loops, its tests. What is finished
# is kept, so that this may be run again where it was cut short.
set -euo pipefail

train() { # GOAL NAME OPTION...
    [ -f "runs/$2/metrics.json" ] ||
        python -m project.fit --config "configs/cifar10_$1.yaml" --config configs/hardware/gpu.yaml --data.device_cache true \
            --trainer.log_every_n_steps 25 --name "$2" "${@:3}"
}

# are the images there, and does torch compile these networks? It keeps the kernels, which saves time below
compile=true
for goal in 94 96; do
    train $goal "try_$goal" --model.compile true --trainer.fast_dev_run 3 || compile=false
done
for goal in 94 96; do
    for seed in ${SEEDS:-0 1 2 3 4}; do
        train $goal "cifar10_${goal}_$seed" --model.compile $compile --seed_everything "$seed"
    done
    python scripts/seeds.py runs/cifar10_"$goal"_*
done
[ -f gpu.json ] || python -m benchmarks --output gpu.json
TORCHINDUCTOR_CUDAGRAPHS=1 train 94 graphs_94 --model.compile true && python scripts/seeds.py runs/graphs_94
python -m pytest -rs tests/test_gpu.py
