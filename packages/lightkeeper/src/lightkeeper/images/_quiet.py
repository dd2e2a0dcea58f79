"""Messages of libraries that nobody can do anything about."""

import logging
import warnings

_SILENCED = (
    # true of every run, or handled
    ".*Checkpoint directory .* exists and is not empty.*",
    ".*could not find the monitored key.*",
    ".*in eval mode at the start of training.*",
    ".*smaller than the logging interval.*",
    ".*ended before the epoch ended and your dataloader is not resumable.*",
    ".*recommended to use `self.log\\('step'.*",
    ".*does not have many workers.*",
    ".*is not supported by the model summary.*",
    ".*TensorFloat32 tensor cores .* available but not enabled.*",
    ".*`srun` command is available on your system but is not used.*",
    # of images that are read all the same
    ".*Palette images with Transparency.*|.*could be decompression bomb.*",
    # between libraries
    ".*Glyph .* missing from.*|Matplotlib currently does not support .* natively",
    ".*all_gather is deprecated.*",
    ".*LeafSpec.*",
    ".*The given buffer is not writable.*",  # torch 2.11, where it reads a file that it exported
)


def quiet_libraries() -> None:
    """Silences messages of libraries that a user can do nothing about."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # what they print is asked for
    for name in ("profilers", "callbacks.model_summary", "callbacks.early_stopping"):
        logging.getLogger(f"lightning.pytorch.{name}").setLevel(logging.INFO)
    # that it kills this process, as another one has ended
    launcher = "lightning.fabric.strategies.launchers.subprocess_script"
    logging.getLogger(launcher).setLevel(logging.INFO)
    for message in _SILENCED:
        warnings.filterwarnings("ignore", message=message)
