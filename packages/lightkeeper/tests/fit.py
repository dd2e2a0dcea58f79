"""``python -m tests.fit``: the toy command as a program."""

from tests.toy import ToyFit

if __name__ == "__main__":
    ToyFit.main()
