"""Reading a file without running what it says, or being kept busy by it.

``torch.load(..., weights_only=True)`` runs no code of a file. But it calls a few functions with any
arguments, gets the hash of any tuple and inflates what is compressed, so a short file could fill
the memory or take for ever.
"""

import os
import re
import struct
import warnings
import zipfile
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from pickletools import genops
from typing import IO, Any

import torch
from torch import Tensor

from ._errors import UserError, first_sentence

_ZIP = b"PK\3\4"  # by which torch tells its files from older ones
_END_RECORDS = 98  # bytes at the end of a zip file: ZIP64's record and locator, and the old record
_DIRECTORY = 0x10  # of MS-DOS, in a zip file's directory
_OLD_PICKLES = 5  # three of the format, the content, and keys
_LARGEST_TUPLE = 10**6  # values in a tuple and in the tuples in it, each as often as it occurs
_MOST_LEVELS = 100  # of containers inside each other
_MEAN_REPEATS = 10  # times that a value may be walked, on average
_ALWAYS_ALLOWED = 10**5  # values that may be walked, however often repeated

# functions that torch may call and that turn a short argument into much memory or time
_AMPLIFIERS = re.compile(
    r"(builtins|__builtin__) bytearray|_codecs encode"
    r"|torch\._utils _rebuild_(device_tensor_\w+|qtensor)"
)


def read_file(path: str | Path) -> Any:
    """Reads a file of ``torch.save`` or safetensors onto the CPU.

    Raises:
        UserError: It is missing, is damaged or says what to import or run.
    """
    if not Path(path).is_file():  # opening a named pipe would wait for ever
        raise UserError(f"there is no file '{path}'")
    read = _load_safetensors if Path(path).suffix == ".safetensors" else _load_pickles
    try:
        return read(path)
    except Exception as error:  # a damaged file raises all kinds
        unsafe = re.search(r"GLOBAL (\S+)", str(error))  # as torch calls a type or a function
        why = f"it contains {unsafe[1]}" if unsafe else first_sentence(error)
        raise UserError(f"'{path}' is damaged or cannot be read safely: {why}") from error


def _load_safetensors(path: str | Path) -> dict[str, Tensor]:
    """Reads tensors, which are all that such a file has; torch does so only from 2.14 on."""
    from safetensors.torch import load_file  # here, as few files need it

    return load_file(path)


def _load_pickles(path: str | Path) -> object:
    _require_modest(path)
    with warnings.catch_warnings(action="ignore"):  # of an old pickle, before it is refused
        content: object = torch.load(path, map_location="cpu", weights_only=True)
    require_tree(content)
    return content


def _require_modest(path: str | Path) -> None:
    """Refuses a file that would take far more memory or time than its length suggests, or is damaged.

    torch compares no checksums.
    """
    with open(path, "rb") as file:
        start = file.peek(20)[:20]
        if not start.startswith(_ZIP):
            if start[:1] not in (b"\x80", b"L"):  # as pickles begin
                raise ValueError(f"it begins with {start!r}, as no file of torch's does")
            for _ in range(_OLD_PICKLES):
                if file.peek(1):  # torch says what is wrong with a shorter one
                    _require_modest_pickle(file)
            return
        _require_one_directory(file)
        with zipfile.ZipFile(file) as archive:
            parts = archive.infolist()
            if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
                raise ValueError("it is compressed, as TorchScript's files are; save a state_dict")
            if any(part.external_attr & _DIRECTORY for part in parts):
                raise ValueError("a part is marked as a folder")  # torch would read nothing
            if damaged := archive.testzip():
                raise ValueError(f"the checksum of {damaged} is wrong")
            for part in parts:
                if part.filename.lower().endswith("data.pkl"):  # torch ignores case
                    with archive.open(part) as pickle:
                        _require_modest_pickle(pickle)


def _require_one_directory(file: IO[bytes]) -> None:
    """Requires a zip file whose directory ends where its last record begins, as torch writes it.

    torch goes to the place that the record says, and Python to what stands before the record.
    """
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - _END_RECORDS))
    tail = file.read().rjust(_END_RECORDS, b"\0")
    size, start = struct.unpack("<II", tail[-10:-2])  # of the directory
    records = 22
    if tail[-42:-38] == b"PK\6\7":  # the locator of ZIP64's record
        size, start = struct.unpack("<QQ", tail[40:56])
        records = _END_RECORDS
        if struct.unpack("<Q", tail[-34:-26]) != (end - records,):
            raise ValueError("its last record is elsewhere")
    # the old record, and no comment behind it
    if tail[-22:-18] != b"PK\5\6" or start + size + records != end:
        raise ValueError("its directory is not at its end")


def _require_modest_pickle(pickle: IO[bytes]) -> None:
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
            if size > _LARGEST_TUPLE:
                raise ValueError("a tuple in it is too large")
            if code.name == "GLOBAL" and _AMPLIFIERS.fullmatch(str(argument)):
                raise ValueError(f"GLOBAL {str(argument).replace(' ', '.')}")


def require_tree(content: object) -> None:
    """Requires values that can be walked in about the time in which they were read.

    A list that holds another ten times, which holds another ten times, and so on, takes few bytes
    in a file, and for ever to walk.

    Raises:
        ValueError: Lists or dicts are far inside others, or repeated too often.
    """
    seen = set[int]()
    left = _ALWAYS_ALLOWED
    level = [content]
    for _ in range(_MOST_LEVELS):
        containers = {id(value): value for value in level if isinstance(value, list | tuple | dict)}
        left += _MEAN_REPEATS * sum(len(containers[key]) for key in containers.keys() - seen)
        seen |= containers.keys()
        level = [*islice(chain.from_iterable(map(_parts_of, level)), left + 1)]
        left -= len(level)
        if left < 0:
            raise ValueError("it repeats the same lists or dicts too often")
    if level:
        raise ValueError("it has lists or dicts too deep inside each other")


def _parts_of(value: object) -> Sequence[object]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list | tuple) else []
