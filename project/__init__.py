"""Image classification with ResNets on PyTorch Lightning: ``python -m project.fit`` trains, the README tells the rest."""
