"""A run on disk: its folder and lock, checkpoints, TensorBoard's files, and signals."""
