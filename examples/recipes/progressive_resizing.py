"""Progressive resizing: training on small images first.

python -m project.fit --trainer.callbacks+=examples.recipes.progressive_resizing.ProgressiveResizing
"""

from typing import Any

from jsonargparse.typing import ClosedUnitInterval, PositiveInt
from lightkeeper.exact import UserError
from lightkeeper.images import ImageBatch
from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn
from torch.nn.functional import interpolate

from project.model.schedules import total_steps


class ProgressiveResizing(Callback):
    """Trains on small images at first, which costs less, and lets them grow to their full size.

    The image size grows linearly with the share of training that is done (Howard, 2018,
    https://www.fast.ai/posts/2018-08-10-fastai-diu-imagenet.html), batch by batch, after a
    delay if there is one, as in Composer. It is a function of the step alone, so a resumed run
    continues with the same sizes. Evaluation always sees full size.

    Args:
        start: The first image size as a share of the full one.
        until: The share of training after which images have their full size.
        delay: The share of training before which they keep their first size.
        multiple: Image sizes are multiples of this number of pixels; a ResNet reduces them by 32.
    """

    def __init__(
        self,
        start: ClosedUnitInterval = 0.5,
        until: ClosedUnitInterval = 0.75,
        multiple: PositiveInt = 32,
        delay: ClosedUnitInterval = 0.0,
    ) -> None:
        if delay >= until > 0:
            raise UserError(
                f"ProgressiveResizing's delay must be below until, {until}, got {delay}"
            )
        self.start = start
        self.until = until
        self.multiple = multiple
        self.delay = delay

    def image_size(self, done: float, full: int) -> int:
        """Returns the size of training images in pixels after a share of training in [0, 1]."""
        if done >= self.until:
            return full
        growing = max(done - self.delay, 0)
        share = self.start + (1 - self.start) * growing / (self.until - self.delay)
        if share >= 1:
            return full
        size: int = int(full * share) // self.multiple * self.multiple
        return max(int(self.multiple), size)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Counts the steps of training, and checks ``multiple``."""
        self._total_steps = total_steps(trainer)
        self._size: int | None = None
        self._hook = pl_module.network.register_forward_pre_hook(self._resize)
        full = pl_module.preprocessing["crop"]
        if self.start < 1 and self.multiple >= full:
            raise UserError(
                f"ProgressiveResizing's multiple must be below {full}, the image size,"
                f" got {self.multiple}"
            )

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: ImageBatch, batch_idx: int
    ) -> None:
        """Sets the image size for the batch."""
        done = trainer.global_step / self._total_steps
        self._size = self.image_size(done, batch.images.shape[-1])

    def _resize(self, network: nn.Module, inputs: tuple[Tensor]) -> Tensor:
        """Resizes normalised images on their way into the network, which keeps their layout."""
        (images,) = inputs
        return resized(images, self._size).to(images.dtype) if network.training else images

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Lets the model take images of their full size again."""
        self._hook.remove()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Does so after an error as well, which may come before training starts."""
        if hasattr(self, "_hook"):
            self._hook.remove()


def resized(images: Tensor, size: int | None) -> Tensor:
    """Resizes images to a width, bilinearly with antialiasing, to float, unless they have it."""
    height, width = images.shape[-2:]
    if size is None or size == width:
        return images
    shape = (size * height // width, size)
    return interpolate(images.float(), size=shape, mode="bilinear", antialias=True)
