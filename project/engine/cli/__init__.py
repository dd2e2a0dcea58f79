"""The command line: the parser, config files, classes and what was given to them, help and messages."""
