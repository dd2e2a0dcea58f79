"""Opens a large dataset in each process; each writes how much of it is in its own memory alone.

Arguments: a folder for what each process found.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from project.engine.loading.batch import ArrayDataset
from tests.data.stubs import NoiseDataModule
from tests.distributed.job import classifier, trainer
from tests.memory import private_memory


class LargeDataModule(NoiseDataModule):
    """Enough noise to stand out against what a process needs anyway.

    Attributes:
        loads: How often the images were loaded in this process.
        size: Of the training images in bytes.
        kept: What opening the datasets has added to this process's own memory, in bytes.
    """

    loads, kept = 0, 0

    def load(self) -> dict[str, ArrayDataset]:
        """Counts."""
        self.loads += 1
        return super().load()

    def setup(self, stage: str) -> None:
        """Measures when every page of the images was seen by every process."""
        assert self.trainer is not None
        before = private_memory()
        super().setup(stage)
        splits: Any = self.splits
        self.sums = {split: int(data.images.sum()) for split, data in splits.items()}
        self.size = splits["train"].images.nbytes
        self.trainer.strategy.barrier()
        self.kept = private_memory() - before
        self.trainer.strategy.barrier()


def main(out: Path) -> None:
    """Runs the job."""
    world_size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    data = LargeDataModule(train=300_000)
    trainer(world_size, limit_val_batches=1).validate(classifier(), datamodule=data, verbose=False)
    found = {"loads": data.loads, "kept": data.kept, "sums": data.sums, "size": data.size}
    (out / f"rank{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
