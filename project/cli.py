"""What the commands share: one LightningCLI, and errors of one line."""

import errno
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import Strategy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from project.data import ImageDataModule
from project.errors import UserError
from project.model import ImageClassifier
from project.parser import OneLineErrorParser


class ProjectCLI(LightningCLI):
    """What every command parses and builds alike: the kind of data, the trainer, and errors of one line.

    Args:
        command: The module that is run.
        description: What it does, for ``--help``.
        model_class: Builds the model from options.
        defaults: Defaults of options.
        args: The command line, ``sys.argv`` by default.
    """

    model: ImageClassifier
    datamodule: ImageDataModule

    def __init__(
        self,
        command: str,
        description: str,
        model_class: Callable[..., ImageClassifier],
        defaults: dict[str, Any],
        args: ArgsType,
    ) -> None:
        self.defaults = defaults
        super().__init__(
            model_class,
            ImageDataModule,
            save_config_callback=None,
            seed_everything_default=0,
            parser_class=OneLineErrorParser,
            parser_kwargs={"prog": f"python -m {command}", "description": description},
            subclass_mode_data=True,
            args=args,
            run=False,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds what the kinds of classes are, the command's defaults, and the link from the seed to the data."""
        assert isinstance(parser, OneLineErrorParser)
        parser.bases = {
            "data": ImageDataModule,
            "model.optimizer": Optimizer,
            "model.lr_scheduler": LRScheduler,
            "trainer.callbacks": Callback,
            "trainer.logger": Logger,
            "trainer.strategy": Strategy,
        }
        parser.link_arguments("seed_everything", "data.init_args.seed", compute_fn=int)
        parser.set_defaults(self.defaults)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Builds the trainer.

        Raises:
            UserError: Lightning does not accept the combination of options.
        """
        try:
            return super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, ValueError, RuntimeError) as error:
            raise UserError(f"these --trainer options do not work here: {' '.join(str(error).split())}") from error

    def say(self, text: str) -> None:
        """Prints once, however many processes there are."""
        if self.trainer.is_global_zero:
            print(text, flush=True)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Ends the program with one line and code 2 where what the user gave is wrong."""
    try:
        yield
    except UserError as error:
        # torch passes an error of a loader worker on with the worker's traceback in front of it
        text = str(error).rsplit("project.errors.UserError: ", 1)[-1].strip()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        text = f"cannot write: {error.strerror}; make room and give the same command again to continue"
    else:
        return
    sys.stderr.write(f"error: {text}\n")
    sys.exit(2)


def quiet_libraries() -> None:
    """Silences what the libraries say of themselves and a user can do nothing about."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # a training log is the mean since the last one, across the ends of epochs, so short epochs are no trouble
    warnings.filterwarnings("ignore", message=".*smaller than the logging interval.*")
    # Lightning's model summary walks torch's pytrees by a deprecated class
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
