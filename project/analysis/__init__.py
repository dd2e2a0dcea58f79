"""What people look at: tables and plots, shared by commands, callbacks and notebooks."""
