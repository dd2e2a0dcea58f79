"""Settings that follow from the machine where the command leaves them open."""

import torch


def best_precision(accelerator: str) -> str:
    """The fastest precision that trains as well as float32 does: bfloat16 autocast where the hardware computes in it.

    Args:
        accelerator: As in ``--trainer.accelerator``.

    Returns:
        As in ``--trainer.precision``.
    """
    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        return "bf16-mixed" if torch.cuda.is_bf16_supported(including_emulation=False) else "32-true"
    if accelerator in ("auto", "cpu"):
        # without these instructions a CPU emulates bfloat16, at a fraction of the speed of float32
        return "bf16-mixed" if torch.cpu._is_avx512_bf16_supported() else "32-true"
    return "32-true"
