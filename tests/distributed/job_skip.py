"""Trains on image files of which the first process, it alone, cannot read some; each process writes what it has left."""

import json
import os
import sys
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from project.data import FolderDataModule
from project.engine.cli.command import one_line_errors
from project.engine.errors import UnreadableFileError
from project.engine.loading import check
from project.engine.loading.batch import ImageBatch
from project.engine.loading.decode import check_image
from tests.distributed.job import trainer


class Mean(LightningModule):
    """Predicts the label from the mean colour."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def training_step(self, batch: ImageBatch, _: int) -> Tensor:
        """The loss of a batch."""
        return nn.functional.cross_entropy(self.layer(batch.images.float().mean((2, 3))), batch.labels)

    def configure_optimizers(self) -> Any:
        """Any optimizer will do."""
        return torch.optim.SGD(self.parameters(), lr=0.001)


def main(folder: Path) -> None:
    """Runs the job."""
    rank, module, whole = int(os.environ["RANK"]), cast(Any, check), check_image

    def look(file: Path) -> None:
        if rank == 0 and file.name.endswith("1.jpg"):
            raise UnreadableFileError(f"'{file}' cannot be read as an image")
        whole(file)

    module.check_image = look
    options: dict[str, Any] = {"image_size": 16, "batch_size": 4, "num_workers": 0, "val_fraction": 0.3}
    data = FolderDataModule(str(folder / "images"), on_bad_image="skip", test_fraction=0.3, **options)
    with one_line_errors():
        trainer(2, max_epochs=2).fit(Mean(), datamodule=data)
    splits: Any = data.splits
    files = {split: [file.name for file in dataset.files] for split, dataset in splits.items()}
    (folder / f"{rank}.json").write_text(json.dumps(files))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
