"""A look at pickles before they are loaded: a short one could fill the memory or take for ever.

``torch.load(..., weights_only=True)`` runs no code of a file, but calls a few functions with any
arguments, and gets the hash of any tuple.
"""

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from pickletools import genops
from typing import IO

_ZIP = b"PK\3\4"  # by which torch tells its files from older ones
_OLD_PICKLES = 5  # three of the format, the content, and keys
_LARGEST = 10**6  # values in a tuple and in the tuples in it, each as often as it occurs

# of those that torch may call, the ones that make much of a number, or more with each call
_MAKERS = re.compile(
    r"(builtins|__builtin__) bytearray|_codecs encode"
    r"|torch\._utils _rebuild_(device_tensor_\w+|qtensor)"
)


def require_modest(path: str | Path) -> None:
    """Refuses a file whose pickles would take far more memory or time than their length suggests.

    Raises:
        Exception: There is such a pickle, or it is damaged.
    """
    for pickle in _pickles(path):
        _require_modest(pickle)


def _pickles(path: str | Path) -> Iterator[IO[bytes]]:
    """Yields the pickles that ``torch.load`` reads."""
    with open(path, "rb") as file:
        if file.read(len(_ZIP)) != _ZIP:
            file.seek(0)
            for _ in range(_OLD_PICKLES):
                if file.peek(1):  # torch says what is wrong with a shorter one
                    yield file
            return
        with zipfile.ZipFile(file) as archive:
            for part in archive.infolist():
                if part.filename.endswith("data.pkl"):
                    with archive.open(part) as pickle:
                        yield pickle


def _require_modest(pickle: IO[bytes]) -> None:
    """Follows a pickle's stack, with the number of values in each tuple in place of the tuple."""
    stack: list[int] = []
    marks: list[int] = []
    memo: dict[object, int] = {}
    for code, argument, _ in genops(pickle):
        if code.name == "MARK":
            marks.append(len(stack))
        elif code.name.endswith("PUT") or code.name == "MEMOIZE":
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif code.name.endswith("GET"):
            stack.append(memo[argument])
        else:
            start = len(stack) - len(code.stack_before)
            if any(item.name == "mark" for item in code.stack_before):
                start = marks.pop() - len(code.stack_before) + 2
            size = 1 + sum(stack[start:]) if "TUPLE" in code.name else 1
            stack[start:] = [size] * len(code.stack_after)
            if size > _LARGEST:
                raise ValueError("a tuple in it is too large")
            if code.name == "GLOBAL" and _MAKERS.fullmatch(str(argument)):
                raise ValueError(f"GLOBAL {str(argument).replace(' ', '.')}")
