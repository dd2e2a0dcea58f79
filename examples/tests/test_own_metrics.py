"""Models whose metrics are fewer, or others, than the template's: what commands show of them."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy

from project import compare
from project.analysis import comparison
from project.model import ImageClassifier
from project.model.metrics import TopKAccuracy
from tests.conftest import BEST, RUN, SLIM, TINY, call, cases, evaluate, fit, read_json, report_of
from tests.test_compare import runs  # noqa: F401  # a fixture


class WithoutF1(ImageClassifier):
    """Has no confusion matrix."""

    def configure_metrics(self) -> dict[str, Metric]:
        metrics = super().configure_metrics()
        return {name: metrics[name] for name in ("loss", "accuracy")}


class Stock(ImageClassifier):
    """Has torchmetrics' accuracy, which does not count images."""

    def configure_metrics(self) -> dict[str, Metric]:
        accuracy = MulticlassAccuracy(len(self.class_names), average="micro")
        return {"accuracy": accuracy, "top5": TopKAccuracy(5)}


class Nothing(ImageClassifier):
    """Measures nothing, as of self-supervision."""

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        return self(batch[0]).var()

    def validation_step(self, *_: Any) -> None:  # type: ignore[override]
        """Measures nothing."""

    test_step = validation_step  # type: ignore[assignment]


@cases(
    "cls row cards",
    (
        WithoutF1,
        r"accuracy .* {accuracy:.2%}$",
        ["test accuracy"],
    ),
    (Stock, r"accuracy .* {accuracy:.2%}$", ["test accuracy"]),
    (Nothing, "nothing was measured", []),
)
def test_commands_show_what_a_model_measures(cls, row, cards, workplace, capsys):
    own = [f"--model={__name__}.{cls.__name__}", "--name=run"]
    fit(*TINY, *SLIM, *own, *(["--callbacks.best_checkpoint=false"] if cls is Nothing else []))
    test = read_json(RUN / "metrics.json")["test"]
    table = capsys.readouterr().out
    assert re.search(row.format(**test), table, re.M), table
    evaluate(str(BEST), "--output=measured.json")
    assert read_json("measured.json").items() >= test.items()
    page = report_of(RUN).read_text()
    found = re.findall(r'<div class="card">.*<span>(.*?)(?:; 95.*)?</span>', page)
    expected = [card.format(**test) for card in cards]
    assert [card for card in found if card.startswith("test")] == expected
    assert not re.search('alt="Confusion|id="classes"', page)
    if cls is not Nothing:
        metrics, _ = comparison.read_runs([str(RUN)], "test")
        assert metrics["test/accuracy"].item() == test["accuracy"]


@cases("changes", {"total": 18}, {"correct": 3})
def test_runs_on_other_images_are_compared_with_a_note(changes, runs, capsys):  # noqa: F811
    metrics = read_json("sgd_0/metrics.json")
    metrics["test"] |= changes
    Path("sgd_0/metrics.json").write_text(json.dumps(metrics))
    call(compare, *runs)
    noted = "the runs differ in their classes or in the number of test images\n"
    assert capsys.readouterr().err == (noted if "total" in changes else "")
