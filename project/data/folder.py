"""Any folder of classes: ``root/<class>/*``, split by us, or ``root/{train,val,test}/<class>/*``, taken as they are."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from project.checkpoint import Preprocessing
from project.data.batch import BatchDataset, ImageBatch
from project.data.decode import IMAGE_SUFFIXES, centre_box, check_image, crop_and_resize, open_image, random_box
from project.data.hashing import Purpose, uniform
from project.data.module import ImageDataModule
from project.data.splits import SPLITS, stratified_split
from project.errors import UserError, require

IMAGENET_MEAN, IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
_CROP_TRIES = 10

ClassFiles = dict[str, list[Path]]


class FileDataset:
    """Image files, decoded and cropped when a batch asks for them.

    Args:
        files: The image files.
        labels: int64 (N,).
        preprocessing: Gives the sizes.
        crop_scale: The smallest and largest share of a picture that a random crop keeps; None cuts from the centre.
        seed: Decides the random crops.
    """

    def __init__(
        self,
        files: list[Path],
        labels: Tensor,
        preprocessing: Preprocessing,
        crop_scale: tuple[float, float] | None = None,
        seed: int = 0,
    ) -> None:
        self.files, self.labels = files, labels
        self.resize, self.crop = preprocessing["resize"], preprocessing["crop"]
        self.crop_scale, self.seed = crop_scale, seed

    def __len__(self) -> int:
        return len(self.files)

    def __getitems__(self, keys: list[int]) -> ImageBatch:
        indices = torch.tensor(keys) % len(self)
        if self.crop_scale is None:
            images = [self.image(index) for index in indices.tolist()]
        else:
            images = [self._random_crop(*divmod(key, len(self)), self.crop_scale) for key in keys]
        return ImageBatch(torch.stack(images), self.labels[indices], indices)

    def image(self, index: int) -> Tensor:
        """One picture as evaluation sees it, uint8 (3, crop, crop)."""
        file = self.files[index]
        with open_image(file) as picture:
            return crop_and_resize(picture, centre_box(*picture.size, self.resize, self.crop), self.crop, file)

    def name(self, index: int) -> str:
        """The file's class folder and name."""
        return str(Path(*self.files[index].parts[-2:]))

    def _random_crop(self, epoch: int, index: int, scale: tuple[float, float]) -> Tensor:
        draws = uniform(self.seed, epoch, torch.tensor([index]), Purpose.CROP, 4 * _CROP_TRIES).view(_CROP_TRIES, 4)
        file = self.files[index]
        with open_image(file) as picture:
            return crop_and_resize(picture, random_box(*picture.size, draws, scale), self.crop, file)


class FolderDataModule(ImageDataModule):
    """Image files in a folder for each class.

    Args:
        root: Holds a folder for each class; or ``train`` and, where there are such, ``val`` and ``test``, with a folder
            for each class in each. A split that is not there is cut from the training images.
        image_size: The side in pixels of what the network sees.
        crop_scale: The smallest and largest share of a picture that a random crop in training keeps.
        val_fraction: The share of each class that becomes validation data, where we split.
        test_fraction: The share of each class that becomes test data, where we split.
        batch_size: Images in one optimizer step's forward passes on all devices together.
        kwargs: See :class:`project.data.module.ImageDataModule`.
    """

    in_memory = False

    def __init__(
        self,
        root: str,
        image_size: int = 224,
        crop_scale: tuple[float, float] = (0.08, 1.0),
        val_fraction: float = 0.1,
        test_fraction: float = 0.1,
        batch_size: int = 64,
        **kwargs: Any,
    ) -> None:
        super().__init__(batch_size=batch_size, **kwargs)
        require(image_size >= 8, "--data.image_size", image_size, "at least 8")
        if not 0 < crop_scale[0] <= crop_scale[1] <= 1:
            raise UserError(
                f"--data.crop_scale {list(crop_scale)} makes no sense here: it must be two shares, as [0.08, 1]"
            )
        if not (val_fraction > 0 and test_fraction > 0 and val_fraction + test_fraction < 1):
            raise UserError(
                f"--data.val_fraction {val_fraction} and --data.test_fraction {test_fraction} make no sense here:"
                " both must be above 0 and leave something to train on"
            )
        self.root, self.image_size, self.crop_scale = Path(root).expanduser(), image_size, crop_scale
        self.fractions = {"val": val_fraction, "test": test_fraction}
        self._files: dict[str, ClassFiles] = {}
        self._checked = False

    @property
    def class_names(self) -> list[str]:
        """The names of the class folders, sorted."""
        return list(self.files()["train"])

    @property
    def preprocessing(self) -> Preprocessing:
        """ImageNet's statistics, and the customary margin of 8/7 around the centre crop."""
        return {"resize": self.image_size * 8 // 7, "crop": self.image_size, "mean": IMAGENET_MEAN, "std": IMAGENET_STD}

    @property
    def images_root(self) -> Path:
        """The folder that holds the classes or the splits."""
        return self.root

    def prepare_data(self) -> None:
        """Looks at every file once before training starts, on one process a machine.

        Raises:
            UserError: A file is not an image, is empty or is cut short.
        """
        if self._checked:  # Lightning prepares the data again before the test
            return
        files = sorted({file for split in self.files().values() for names in split.values() for file in names})
        with ThreadPoolExecutor() as pool:
            checks = pool.map(check_image, files)
            for _ in tqdm(checks, total=len(files), desc="checking images", unit="", delay=1, leave=False):
                pass
        self._checked = True

    def files(self) -> dict[str, ClassFiles]:
        """The image files of each split, found and split once.

        Raises:
            UserError: The root does not exist or has no images, a class has none, or splits have different classes.
        """
        if not self._files:
            self._files = self._find()
        return self._files

    def load(self) -> dict[str, BatchDataset]:
        """Opens the three splits."""
        datasets: dict[str, BatchDataset] = {}
        for split in SPLITS:
            files = self.files()[split]
            labels = [label for label, name in enumerate(self.class_names) for _ in files[name]]
            flat = [file for name in self.class_names for file in files[name]]
            crop_scale = self.crop_scale if split == "train" else None
            datasets[split] = FileDataset(flat, torch.tensor(labels), self.preprocessing, crop_scale, self.seed)
        return datasets

    def _find(self) -> dict[str, ClassFiles]:
        root = self.images_root
        if not root.is_dir():
            raise UserError(
                f"--data.root: there is no folder '{root}'; it must hold one folder of images for each class"
            )
        given = [split for split in SPLITS if _holds_folders(root / split)]
        if "train" not in given:
            return self._split(_classes(root), SPLITS[1:])
        for other in ("valid", "validation"):
            if "val" not in given and _holds_folders(root / other):
                raise UserError(f"'{root / other}' would be ignored; call it '{root / 'val'}'")
        found = {split: _classes(root / split) for split in given}
        for split in given[1:]:
            if list(found[split]) != list(found["train"]):
                odd = sorted(set(found[split]) ^ set(found["train"]))
                raise UserError(
                    f"'{root / split}' and '{root / 'train'}' need the same classes, but differ in: {', '.join(odd)}"
                )
        return found | self._split(found["train"], [split for split in SPLITS if split not in given])

    def _split(self, files: ClassFiles, missing: list[str] | tuple[str, ...]) -> dict[str, ClassFiles]:
        flat = [(label, file) for label, name in enumerate(files) for file in files[name]]
        names = [f"{file.parent.name}/{file.name}" for _, file in flat]
        fractions = {split: self.fractions[split] for split in missing}
        splits = stratified_split(
            names, [label for label, _ in flat], fractions, seed=self.split_seed, class_names=list(files)
        )
        classes = list(files)
        found: dict[str, ClassFiles] = {split: {name: [] for name in classes} for split in splits}
        for split, positions in splits.items():
            for position in positions:
                found[split][classes[flat[position][0]]].append(flat[position][1])
        return found


def _holds_folders(folder: Path) -> bool:
    return folder.is_dir() and any(entry.is_dir() for entry in folder.iterdir())


def _classes(root: Path) -> ClassFiles:
    folders = [entry for entry in _by_name(root) if entry.is_dir() and not entry.name.startswith(".")]
    found = {
        folder.name: [file for file in _by_name(folder) if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file()]
        for folder in folders
    }
    if not any(found.values()):
        raise UserError(
            f"--data.root: '{root}' has no images; it must hold one folder for each class, as in {root}/daisy/1.jpg"
        )
    empty = [name for name, files in found.items() if not files]
    if empty:
        raise UserError(f"the class folder '{root / empty[0]}' has no images; add some or remove the folder")
    if len(found) < 2:
        raise UserError(
            f"--data.root: '{root}' has one class only, '{folders[0].name}'; there is nothing to tell apart"
        )
    return found


def _by_name(folder: Path) -> list[Path]:
    """What is in a folder, in the same order on every system: paths themselves compare without case on Windows."""
    return sorted(folder.iterdir(), key=lambda entry: entry.name)
