"""The command line: configs, flags, classes, help and one-line errors."""
