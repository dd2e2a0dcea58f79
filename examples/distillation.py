"""Distillation: a small network learns from the answers of a trained one (Hinton et al., 2015, https://arxiv.org/abs/1503.02531).

python -m project.fit --model examples.distillation.Student --model.teacher runs/NAME/checkpoints/best.ckpt
"""

from typing import Any

from lightkeeper.exact import UserError
from torch import Tensor
from torch.nn import functional as F

from project.model import ImageClassifier


class Student(ImageClassifier):
    """Learns from labels and from a teacher's probabilities in equal parts.

    Args:
        teacher: A checkpoint of this project, for the same classes.
        temperature: Divides the logits of both; the higher, the more the wrong classes count.
        kwargs: See :class:`project.model.classifier.ImageClassifier`.
    """

    not_saved = [*ImageClassifier.not_saved, "teacher"]

    def __init__(self, teacher: str = "", temperature: float = 4.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.teacher, self.temperature = teacher, temperature

    def on_fit_start(self) -> None:
        """Opens the teacher, in a list, as a module's attribute would be trained and saved."""
        teacher = ImageClassifier.load_from_checkpoint(self.teacher, self.device)
        if teacher.class_names != self.class_names:
            raise UserError("--model.teacher must know the data's classes, in the same order")
        self.teachers = [teacher.eval().requires_grad_(False)]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Measures the batch and returns its mean loss."""
        images, labels, t = batch[0], batch[1], self.temperature
        logits, wanted = self(images), self.teachers[0](images)
        soft = (
            F.kl_div((logits / t).log_softmax(1), (wanted / t).softmax(1), reduction="none").sum(1)
            * t**2
        )
        losses = (self.loss(logits, labels) + soft) / 2
        self.measure("train", logits, labels, losses)
        return losses.mean()
