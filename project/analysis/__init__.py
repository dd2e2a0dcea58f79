"""Tables and plots, shared by commands, callbacks and notebooks."""
