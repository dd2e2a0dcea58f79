"""Image classification with ResNets on PyTorch Lightning; the README tells how to begin."""
