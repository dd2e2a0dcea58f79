"""Speed of this machine beside plain PyTorch loops: ``python -m benchmarks``, described in docs/results.md."""
