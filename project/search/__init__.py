"""A search over options of ``project.fit``, with Optuna."""
