"""The commands of the page on Kaggle, in a folder that stands for ``/kaggle``."""

import re
import shlex
import subprocess
from pathlib import Path

import torch

from tests.conftest import ROOT, SMALL_FILES, load, make_folder, read_json, small, stop_at

PAGE = (ROOT / "docs" / "kaggle_and_colab.md").read_text()


def test_a_run_resumes_the_next_day_from_read_only_input(workplace):
    def words(start: str) -> list[str]:
        (line,) = re.findall(rf"^{start} (.*)$", PAGE, re.M)
        return shlex.split(line.replace("/kaggle", f"{workplace}/kaggle"))

    inputs, runs = (workplace / "kaggle" / name for name in ("input", "working/runs"))
    make_folder(inputs / "photos", {"a": 12, "b": 12})
    options = [*words(r"timeout \w+ python -m project.fit"), *SMALL_FILES, "--data.batch_size=4"]
    small(*options, "--trainer.default_root_dir=undisturbed", data=())
    stop_at(3, *options, data=())
    (inputs / "yesterday").mkdir()
    runs.rename(inputs / "yesterday" / "runs")
    before = {path: path.stat().st_mtime_ns for path in inputs.rglob("*")}
    subprocess.run(["cp", *words(r"cp(?= -r \S+/yesterday)")], check=True)
    small(*options, data=())
    assert {path: path.stat().st_mtime_ns for path in inputs.rglob("*")} == before
    assert read_json(runs / "mine" / "metrics.json")["test"]["total"] > 0
    ends = [load(root / "mine/checkpoints/last.ckpt") for root in (runs, Path("undisturbed"))]
    torch.testing.assert_close(ends[0]["state_dict"], ends[1]["state_dict"], rtol=0, atol=0)
