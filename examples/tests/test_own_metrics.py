"""Models whose metrics are fewer, or others, than the template's: what commands show of them."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from lightkeeper.exact import UserError
from lightkeeper.images import ImageDataModule
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy

from project import compare
from project.analysis import comparison
from project.analysis.evaluation import evaluate_split
from project.analysis.page import image_sections
from project.analysis.tables import metrics_table
from project.model import ImageClassifier
from project.model.classifier import Split
from project.model.metrics import MacroF1, SetMetrics, TopKAccuracy
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


class Balanced(ImageClassifier):
    """Its accuracy is the mean of the classes', beside counts of all images."""

    def configure_metrics(self) -> dict[str, Metric]:
        accuracy = MulticlassAccuracy(len(self.class_names), average="macro")
        return super().configure_metrics() | {"accuracy": accuracy}


class SecondBest(ImageClassifier):
    """Decides otherwise than its metrics."""

    def predicted(self, probabilities: Tensor, split: Split = "test") -> Tensor:
        return probabilities.topk(2).indices[:, 1]


@cases(
    "cls row cards",
    (
        WithoutF1,
        r"accuracy .* {accuracy:.2%}$",
        ["test accuracy"],
    ),
    (Stock, r"accuracy .* {accuracy:.2%}$", ["test accuracy"]),
    (Balanced, r"accuracy .* {accuracy:.2%}$", ["test accuracy"]),
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
    assert bool(re.search('alt="Confusion|id="classes"', page)) == (cls is Balanced)
    if cls is not Nothing:
        metrics, _ = comparison.read_runs([str(RUN)], "test")
        assert metrics["test/accuracy"].item() == test["accuracy"]


def test_a_decision_that_the_metrics_do_not_take_is_noted(workplace, capsys):
    fit(*TINY, *SLIM, f"--model={__name__}.SecondBest", "--name=run")
    capsys.readouterr()
    evaluate(str(BEST), "--output_predictions=rows.csv")
    rows = Path("rows.csv").read_text().count(",true\n")
    correct = read_json(RUN / "metrics.json")["test"]["correct"]
    noted = f"note: {rows} images are correct by SecondBest.predicted, and {correct} by its metrics"
    assert noted in capsys.readouterr().err


@cases(
    "metrics cell",
    ({"accuracy": 5 / 6, "correct": 5, "total": 6}, "83.33% (5/6)"),
    ({"accuracy": float(torch.tensor(5 / 6)), "correct": 5, "total": 6}, "83.33% (5/6)"),
    ({"accuracy": 0.6, "correct": 95, "total": 100}, "60.00%"),
    ({"top5": 0.0, "top5_correct": 0}, "0.00%"),
)
def test_counts_stand_beside_their_own_share_alone(metrics, cell):
    assert metrics_table({"test": metrics}).endswith(f"  {cell}")


def test_two_metrics_of_one_name_are_refused():
    metrics = SetMetrics({"f1": MacroF1(2), "again": MacroF1(2)})
    metrics.update(torch.eye(2), torch.arange(2), torch.ones(2))
    with pytest.raises(
        UserError, match="two metrics are called 'confusion_matrix'; the second is f1's"
    ):
        metrics.compute_and_reset()


def test_an_f1_of_ones_own_has_no_interval_of_the_macro_f1(tiny_run, workplace):
    best = tiny_run / BEST.relative_to(RUN)
    model, data = (
        ImageClassifier.load_from_checkpoint(best),
        ImageDataModule.load_from_checkpoint(best),
    )
    test = evaluate_split(model, data)
    for shift, names in ((0.0, {"f1", "accuracy"}), (0.1, {"accuracy"})):
        test.metrics["f1"] += shift
        assert {*cast(dict[str, Any], image_sections(model, test, data)["intervals"])} == names


@cases("changes", {"total": 18}, {"correct": 3})
def test_runs_on_other_images_are_compared_with_a_note(changes, runs, capsys):  # noqa: F811
    metrics = read_json("sgd_0/metrics.json")
    metrics["test"] |= changes
    Path("sgd_0/metrics.json").write_text(json.dumps(metrics))
    call(compare, *runs)
    noted = "the runs differ in their classes or in the number of test images\n"
    assert capsys.readouterr().err == (noted if "total" in changes else "")
