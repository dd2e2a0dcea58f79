"""What ``python -m benchmarks`` measures: loading, training, evaluation and the start, beside plain loops."""
