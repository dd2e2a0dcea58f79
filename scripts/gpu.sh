#!/usr/bin/env bash
# Measures what needs a GPU: CIFAR-10 to 94% for each of $SEEDS, its speed beside plain loops, its tests. What is finished is kept, so
# that this may be run again where it was cut short.
set -euo pipefail

train() { # NAME OPTION...
    [ -f "runs/$1/metrics.json" ] ||
        python -m project.fit --config examples/recipes/cifar10_94.yaml --config configs/hardware/gpu.yaml --data.device_cache true \
            --trainer.log_every_n_steps 25 --name "$@"
}

# are the images there, and does torch compile the network? It keeps the kernels, which saves time below
compile=true
train try --model.compile true --trainer.fast_dev_run 3 || compile=false
for seed in ${SEEDS:-0 1 2 3 4}; do
    train "cifar10_94_$seed" --model.compile $compile --seed_everything "$seed"
done
python scripts/seeds.py runs/cifar10_94_*
[ -f gpu.json ] || python -m benchmarks --output gpu.json
TORCHINDUCTOR_CUDAGRAPHS=1 train graphs_94 --model.compile true && python scripts/seeds.py runs/graphs_94
python -m pytest -rs tests/test_gpu.py
if [ -d packages/lightkeeper ]; then cd packages/lightkeeper && python -m pytest -rs tests/exact/test_gpu.py; fi
