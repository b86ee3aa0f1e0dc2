"""`mue init`: files that can be planned from at once, and that are never overwritten unasked."""

from __future__ import annotations

import json
from pathlib import Path

import complete_mue as mue
from in_process import mue as run

NAMES = ("reference.toml", "target.toml")


def test_what_it_writes_can_be_planned_from(tmp_path: Path) -> None:
    done = run("init", "--out", "a/b", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "a/b").iterdir()) == sorted(NAMES)
    files = [f"a/b/{name}" for name in NAMES]
    assert run("plan", *files, cwd=tmp_path).returncode == 0
    text = (tmp_path / files[0]).read_text()
    keys = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    assert sum("#" in line for line in keys) > len(keys) / 2  # commented


def test_it_refuses_to_overwrite(tmp_path: Path) -> None:
    (tmp_path / "target.toml").write_text("mine")
    done = run("init", cwd=tmp_path)
    assert done.returncode == 2
    assert "target.toml" in done.stderr
    assert "--force" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["target.toml"]
    assert (tmp_path / "target.toml").read_text() == "mine"
    assert run("init", "--force", cwd=tmp_path).returncode == 0
    mue.read_target(tmp_path / "target.toml")
    (tmp_path / "reference.toml").unlink()
    (tmp_path / "reference.toml").symlink_to("elsewhere")
    assert run("init", cwd=tmp_path).returncode == 2
    assert run("init", "--force", cwd=tmp_path).returncode == 0
    assert not (tmp_path / "elsewhere").exists()  # a link is replaced, not followed


def test_from_a_config(tmp_path: Path) -> None:
    fields = {
        "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
        "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8,
        "n_shared_experts": 1, "first_k_dense_replace": 3, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    }  # fmt: skip
    config = tmp_path / "model/config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(fields))
    assert run("init", "model", cwd=tmp_path).returncode == 0
    shape, _ = mue.read_target(tmp_path / "target.toml")
    reference = mue.read_reference(tmp_path / "reference.toml")
    assert mue.transfer(reference, shape).attention_scale is not None
    assert (shape.width, shape.depth, shape.dense_layers, str(shape.main)) == (7168, 61, 3, "256e8a1s")
    assert reference.shape.depth == 61
    assert reference.shape.head_dim == shape.head_dim == 192
    assert reference.shape.width % 192 == 0


def test_layers_that_differ_are_planned_from_the_config(tmp_path: Path) -> None:
    fields = {
        "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 96, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2,
        "mlp_only_layers": [0],
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(fields))
    done = run("init", "config.json", "--out", "new", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["reference.toml"]
    assert "config.json" in done.stdout
    assert run("plan", "new/reference.toml", "config.json", cwd=tmp_path).returncode == 0
    assert run("init", "new/reference.toml", cwd=tmp_path).returncode == 2  # not a config
