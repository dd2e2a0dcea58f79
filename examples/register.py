"""A command: a finished run in MLflow's model registry, with its metrics and an alias; needs pip install mlflow onnx.

python -m project.export runs/NAME/checkpoints/best.ckpt --output model.onnx
MLFLOW_TRACKING_URI=sqlite:///mlflow.db python -m examples.register runs/NAME model.onnx flowers --alias champion
"""

from pathlib import Path

import mlflow
import onnx
from jsonargparse import Namespace
from lightkeeper.cli import CommandParser, RunFolder, read_metrics, run_command


def parser() -> CommandParser:
    """Returns the parser of the options."""
    parser = CommandParser(prog="python -m examples.register", description="Registers a model.")
    parser.add_argument("run", type=Path, help="The folder of a finished run, as in runs/NAME.")
    parser.add_argument("file", type=str, help="The ONNX file that was exported from it.")
    parser.add_argument("name", type=str, help="The registered model.")
    parser.add_argument("--alias", type=str | None, help="For this version, such as champion.")
    return parser


def main(options: Namespace) -> None:
    """Registers a version, which takes images, uint8 (N, 3, height, width)."""
    metrics = read_metrics(options.run)
    folder = RunFolder(options.run.parent, options.run.name)
    with mlflow.start_run(run_name=options.run.name):
        mlflow.log_artifact(str(folder.config))
        mlflow.log_artifact(str(folder.best))
        for split in ("val", "test"):
            shares = {
                key: value for key, value in metrics[split].items() if isinstance(value, float)
            }
            mlflow.log_metrics({f"{split}/{key}": value for key, value in shares.items()})
        model = onnx.load(options.file)
        info = mlflow.onnx.log_model(model, name="model", registered_model_name=options.name)
    if options.alias is not None:
        client = mlflow.MlflowClient()
        client.set_registered_model_alias(
            options.name, options.alias, info.registered_model_version
        )
    print(f"{options.name}, version {info.registered_model_version}")


if __name__ == "__main__":
    run_command(lambda: main(parser().parse_args()))
