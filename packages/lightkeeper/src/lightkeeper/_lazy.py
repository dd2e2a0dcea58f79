"""Public names that are imported on first use, so that ``--help`` need not import torch."""

from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Returns a package's ``__getattr__`` and ``__dir__`` (PEP 562), and its ``__all__``.

    Args:
        package: The package's name.
        modules: The module of the package that defines each public name.
    """

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    names = sorted(modules)
    return get, lambda: names, names
