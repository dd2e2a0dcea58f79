"""What the machine offers: cores within a quota."""

import os

from lightkeeper.images import _hardware as hardware

from tests.toy import cases


@cases(
    "files cores",
    ({}, 64),
    ({"cpu.max": "max 100000"}, 64),
    ({"cpu.max": "400000 100000"}, 4),
    ({"cpu.max": "150000 100000"}, 2),
)
def test_a_containers_quota_limits_the_usable_cores(tmp_path, monkeypatch, files, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    assert hardware.usable_cores(tmp_path) == cores


@cases(
    "features precision",
    ({"amx_bf16": True, "avx512_bf16": True, "cpu_name": "Intel Xeon"}, "bf16-mixed"),
    ({"avx512_bf16": True, "cpu_name": "Intel Xeon"}, "32-true"),
    ({"avx512_bf16": True, "cpu_name": "AMD EPYC"}, "bf16-mixed"),
    ({"cpu_name": "AMD EPYC"}, "32-true"),
)
def test_bfloat16_is_the_default_where_it_is_faster(monkeypatch, features, precision):
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: features)
    assert hardware.best_precision("cpu") == precision
