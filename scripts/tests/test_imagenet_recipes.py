"""The recipes of ImageNet are scaled down as the script says, trained once and summed up."""

import imagenet_recipes
import pytest
import yaml

from tests.conftest import ONE_CPU, QUIET, ROOT, fit, make_folder, read_json


@pytest.mark.parametrize("name", imagenet_recipes.RECIPES)
def test_a_recipe_of_imagenet_is_scaled_down_as_its_script_says(name):
    config = yaml.safe_load((ROOT / "configs" / "imagenet" / f"{name}.yaml").read_text())
    common, scaled = (
        {name: value for name, _, value in (option[2:].partition("=") for option in options)}
        for options in (imagenet_recipes.SMALL, imagenet_recipes.RECIPES[name])
    )
    trainer, model, data = config["trainer"], config["model"], config["data"]["init_args"]
    epochs = int(common["trainer.max_epochs"])
    batch = int(common["data.batch_size"]) / data["batch_size"]
    share, pixels = epochs / trainer["max_epochs"], int(common["data.image_size"]) / 224
    rule = 0.5 if model["optimizer"]["class_path"].endswith("Lamb") else 1
    expected = {"model.optimizer.lr": model["optimizer"]["init_args"]["lr"] * batch**rule}
    schedule = model["lr_scheduler"]["init_args"]
    for option in {"warmup_epochs", "step_size"} & {*schedule}:
        expected[f"model.lr_scheduler.{option}"] = schedule[option] * share
    for option in {"train_size", "resize"} & {*data}:
        expected[f"data.{option}"] = round(data[option] * pixels)
    for callback in trainer.get("callbacks", []):  # of 1,281,167 images, and 60% of flower_photos
        average, every = callback["init_args"], 69 * epochs
        updates = 1_281_167 / data["batch_size"] * trainer["max_epochs"] / 32
        assert average["update_every_n_steps"] == 32
        expected["trainer.callbacks.decay"] = average["decay"] ** (updates / every)
        expected["trainer.callbacks.update_every_n_steps"] = 1
    scaled.pop("model.lr_scheduler_interval", None)
    found = {option: float(value) for option, value in scaled.items()}
    assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_the_recipes_of_imagenet_are_trained_once_and_summed_up(workplace, monkeypatch, capsys):
    for folder in ("configs", "examples"):
        (workplace / folder).symlink_to(ROOT / folder)
    make_folder(workplace / "images", dict.fromkeys("abc", 20))
    trained: list[str] = []

    def in_this_process(command: list[str]) -> int:
        trained.append(str(fit(*command[3:]).run.path))
        return 0

    monkeypatch.setattr("training.run_apart", in_this_process)
    options = ["--data.batch_size=8", "--data.num_workers=0", "--trainer.max_epochs=2"]
    for seeds_so_far in (1, 2, 2):
        imagenet_recipes.main("images", seeds_so_far, [*options, *QUIET, *ONE_CPU])
    names = [*imagenet_recipes.RECIPES]
    assert trained == [f"runs/imagenet/{name}/{seed}" for seed in (0, 1) for name in names]
    table = [line.split("|")[1:4] for line in capsys.readouterr().out.splitlines() if "|" in line]
    assert [row[:2] for row in table[-5:]] == [[name, "2"] for name in names]
    for name, _, accuracy in table[-5:]:
        runs = [read_json(f"runs/imagenet/{name}/{seed}/metrics.json") for seed in (0, 1)]
        mean = sum(run["test"]["accuracy"] for run in runs) / 2
        assert accuracy.startswith(f"{100 * mean:.2f}%")
