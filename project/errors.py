"""The one exception whose text is written for the person at the terminal."""


class UserError(Exception):
    """Something the user gave is wrong. The text says what, where, and what to do; commands print it without a traceback."""
