"""Recipes that few need, with the networks, optimizers and schedules that they name."""
