"""Image classification on PyTorch Lightning; the README tells how to begin."""
