"""A model card: the ``README.md`` of an exported folder."""

from collections.abc import Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined

from project.analysis.tables import RATES, Metrics, added_metrics, class_rates
from project.model import ImageClassifier


def model_card(
    model: ImageClassifier, about: Mapping[str, object], split: str, metrics: Metrics
) -> str:
    """Writes a model card in Markdown: use, metrics by class, data, and fields to fill in.

    Args:
        model: The model.
        about: The checkpoint's facts about itself.
        split: The split that was measured; empty if none was.
        metrics: The metrics of that split.
    """
    loader = PackageLoader(__package__, "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    names = [" ".join(name.split()).replace("|", "\\|") for name in model.class_names]
    per_class = class_rates(metrics) if metrics else [{}]
    return environment.get_template("model_card.md").render(
        model=model,
        about=about,
        images=about.get("images") or {},
        versions=about.get("versions") or {},
        split=split,
        metrics=metrics,
        added=added_metrics({split: metrics}),
        rates={rate: heading for rate, heading in RATES.items() if rate in per_class[0]},
        classes=list(zip(names, per_class, strict=False)),
    )
