"""The workings of the commands."""
