"""Images that are cached on the device."""

from torch import Tensor

from project.data.batch import BatchDataset


class DeviceCache:
    """Keeps the images of whole splits on the device, from the first batch of each on."""

    def __init__(self) -> None:
        self._images: dict[str, Tensor] = {}

    def images(self, split: str, dataset: BatchDataset, indices: Tensor) -> Tensor:
        """Takes images from those that are on the device.

        Args:
            split: ``train``, ``val`` or ``test``.
            dataset: All of the split, in memory.
            indices: int64 (N,) on the device, see :class:`ImageBatch`.

        Returns:
            uint8 (N, 3, height, width).
        """
        if split not in self._images:
            self._images[split] = dataset.__getitems__(list(range(len(dataset)))).images.to(indices.device)
        return self._images[split][indices % len(dataset)]
