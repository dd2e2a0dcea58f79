"""What ``python -m project.benchmark`` measures: loading, training, evaluation and the start, beside plain loops."""
