"""Comparison of a checkpoint with this run: weights, the optimizer's state, settings, data and processes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..errors import UserError, listed, printable
from ..run.checkpoint import About

_OF_THE_MACHINE = ("root", "cache", "device_cache", "num_workers")


def require_fitting_weights(own: Mapping[str, Tensor], found: Any, source: object) -> None:
    """Compares weights from a file with the state dict of a network; the UserError names the first that does not fit."""
    if not isinstance(found, Mapping):
        problems = ["it has no weights"]
    else:
        problems = [f"{name} is missing" for name in own if name not in found]
        problems += [f"it has no {printable(name)}" for name in found if name not in own]
    for name in own if not problems else ():
        problems += _tensor_problems(name, found[name], own[name])
    if problems:
        raise UserError(f"'{source}' does not fit this network: {problems[0]}")


def require_same_settings(
    before: Mapping[str, Any], now: dict[str, dict[str, Any]], source: object
) -> None:
    """Compares the settings in a checkpoint with those of the run that is to resume; the UserError names the first."""
    for part, settings in now.items():
        for name, value in settings.items():
            if (old := before[part].get(name)) != value:
                option = f"--model.{part}" if name == "name" else f"--model.{part}'s {name}"
                raise UserError(
                    f"this run was trained with {option} {printable(old)}, which cannot change when it resumes, got {value};"
                    f" to change it, start another: --model.weights {source} --name another"
                )


def require_fitting_state(optimizer: Optimizer, state: Mapping[str, Any], source: object) -> None:
    """Refuses an optimizer's state that is of other parameters."""
    groups, saved_groups = optimizer.param_groups, state["param_groups"]
    own, saved = ([len(group["params"]) for group in found] for found in (groups, saved_groups))
    if own != saved:
        raise UserError(
            f"'{source}' does not fit this optimizer: it trained {sum(saved)} parameters, and now there are {sum(own)};"
            " --model.freeze cannot change when a run resumes"
        )
    for group, saved_group in zip(groups, saved_groups, strict=True):
        if not saved_group.get("fused"):
            continue  # torch itself notices other shapes; fused, it writes where the tensor ends
        for parameter, index in zip(group["params"], saved_group["params"], strict=True):
            for name, value in state["state"].get(index, {}).items():
                if name != "step" and value is not None and value.shape != parameter.shape:
                    what = (
                        f"{printable(name)} of parameter {index} has the shape {tuple(value.shape)}"
                    )
                    raise UserError(
                        f"'{source}' does not fit this optimizer: {what}, not {tuple(parameter.shape)}"
                    )


def _tensor_problems(name: str, found: Any, like: Tensor) -> list[str]:
    if (
        not isinstance(found, Tensor)
        or found.layout is not torch.strided
        or found.is_meta
        or found.is_quantized
    ):
        return [f"{name} is no plain tensor"]
    if found.shape != like.shape:
        return [f"{name} has the shape {tuple(found.shape)}, not {tuple(like.shape)}"]
    if (
        found.is_floating_point() != like.is_floating_point()
        or found.is_complex() != like.is_complex()
    ):
        return [f"{name} holds {found.dtype}, not {like.dtype}".replace("torch.", "")]
    return [] if found.isfinite().all() else [f"{name} has values that are not finite"]


def require_match(
    about: About, path: str | Path, model: Any, chosen: dict[str, str] | None
) -> None:
    """Refuses to resume with another model class, network, set of classes, or metric to choose the best checkpoint by."""
    kind = type(model).__name__
    if (found := about.get("model", kind)) != kind:
        raise UserError(
            f"'{path}' holds a {printable(found)}, but this command asks for {kind}; see --model, or use another --name"
        )
    before, now = (about["arch"], about.get("arch_args") or {}), (model.arch, model.arch_args or {})
    if before != now:
        options = " ".join(
            [
                f"--model.arch {before[0]}",
                *(f"--model.arch_args.{n} {v}" for n, v in before[1].items()),
            ]
        )
        raise UserError(
            f"'{path}' holds another network than this command asks for; use {printable(options)}, or another --name"
        )
    require_same_classes(about["class_names"], path, model.class_names)
    if (selected := about.get("selection")) != chosen:
        names = [
            f"{one['monitor']}, {one['mode']}" if one else "nothing" for one in (selected, chosen)
        ]
        raise UserError(
            f"this run chooses best.ckpt by {printable(names[0])}, but the command by {names[1]}; keep --monitor, --mode"
            " and --callbacks.best_checkpoint, or use another --name"
        )


def changed_data(about: About, data: Any) -> str:
    """Names the options of the data that are not those of the checkpoint; returns nothing where all are."""
    before = {**(about["data"] or {"init_args": {}})["init_args"], **about.get("transforms", {})}
    now = {name: value for name, value in data.hparams.items() if name not in _OF_THE_MACHINE}
    now |= data.transforms_in_words()
    changes = [
        f"--data.{name} is {value}, not {before[name]}" for name, value in _differing(before, now)
    ]
    return printable(f"; from here on {' and '.join(changes)}") if changes else ""


def changed_processes(about: About, now: int) -> str:
    """Names what another number of processes leaves exact, and what not; returns nothing where it is the same."""
    if (before := about.get("processes", now)) == now:
        return ""
    exact = "order and augmentation are exact, BatchNorm's shares of a batch and the last bits of weights are not"
    return f"; on {now} process{'es' * (now > 1)}, not {printable(before)}: {exact}"


def changed_images(about: About, data: Any) -> str:
    """Names the splits with another number of images than the checkpoint's; returns nothing where there is none."""
    before, now = about.get("images", {}), dict(getattr(data, "split_sizes", dict)())
    changes = [
        f"{size} {name} images, not {before[name]}" for name, size in _differing(before, now)
    ]
    return f"the data has changed since this run was stopped: {listed(changes)}" if changes else ""


def _differing(before: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any]]:
    """Compares as text, as tensors and arrays among the values are compared number by number."""
    return [
        (name, value)
        for name, value in now.items()
        if name in before and repr(before[name]) != repr(value)
    ]


def require_same_classes(known: list[str], path: str | Path, class_names: list[str]) -> None:
    """Refuses data with other classes than a checkpoint knows, or in another order."""
    if known != class_names:
        pairs = zip(known, class_names, strict=False)
        first = next((place for place, (one, other) in enumerate(pairs) if one != other), 0)
        before, now = (
            f"{'…, ' * bool(first)}{listed(names[first:], 4)}" for names in (known, class_names)
        )
        raise UserError(
            f"'{path}' knows the {len(known)} classes {before}, but the data has the {len(class_names)} classes {now};"
            " use the data it was trained on"
        )
