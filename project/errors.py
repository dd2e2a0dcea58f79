"""The one exception whose text is written for the person at the terminal."""


class UserError(Exception):
    """Something the user gave is wrong; the text says what, where and what to do, and commands print it alone."""
