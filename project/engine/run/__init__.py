"""A run on disk: its folder and lock, its checkpoints, TensorBoard's files, and the signals that stop it."""
