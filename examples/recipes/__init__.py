"""Recipes that few need, with the networks, metrics, optimizers and schedules that they name."""
