from __future__ import annotations

from pathlib import Path

import pytest

import complete_mue as mue
from complete_mue.errors import FileError
from complete_mue.layout.toml_files import reference_toml

GOOD = """\
[shape]
width = 128
depth = 32
feed_forward = "dense"
expansion = 1.0

[budget]
batch_tokens = 262144
steps = 25000

[hyper]
lr = 1e-3
weight_decay = 0.1
init_std = 0.01
betas = [0.95, 0.95]
eps = 1e-8
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "file.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_reads_the_reference(tmp_path: Path, lm_reference: mue.Reference) -> None:
    assert mue.read_reference(write(tmp_path, GOOD)) == lm_reference


def test_a_reference_keeps_its_attention_scale(tmp_path: Path) -> None:
    text = GOOD.replace("depth = 32", "depth = 32\nhead_dim = 64") + "attention_scale = 0.0625\n"
    reference = mue.read_reference(write(tmp_path, text))
    assert mue.transfer(reference, reference.shape).attention_scale == reference.attention_scale == 0.0625
    assert mue.read_reference(write(tmp_path, reference_toml(reference))) == reference
    with pytest.raises(FileError, match=r"file\.toml:17: attention_scale = 0\.1 for heads of unknown size"):
        mue.read_reference(write(tmp_path, GOOD + "attention_scale = 0.1\n"))


def test_examples_are_the_papers_models(root: Path, lm_reference: mue.Reference, lm_plan: mue.Plan) -> None:
    assert mue.read_reference(root / "examples/lm_reference.toml") == lm_reference
    assert mue.read_target(root / "examples/lm_large.toml") == (lm_plan.shape, lm_plan.budget)
    dit = mue.read_reference(root / "examples/dit_reference.toml")
    shape, budget = mue.read_target(root / "examples/dit_large.toml")
    pytest.importorskip("torch")
    from complete_mue.lab.recipes import dit_large, dit_proxy

    assert dit == dit_proxy().reference
    assert mue.transfer(dit, shape, budget).isclose(dit_large().plan)


def test_expansions_and_layouts(tmp_path: Path) -> None:
    def block(line: str, width: int = 768) -> mue.FeedForward | tuple[mue.FeedForward, ...]:
        text = f"[shape]\nwidth = {width}\ndepth = 2\n{line}\n[budget]\nbatch_tokens = 1\nsteps = 1\n"
        return mue.read_target(write(tmp_path, text))[0].feed_forward

    assert block('feed_forward = "dense"') == mue.FeedForward.dense(768)
    assert block('feed_forward = "dense"\nexpansion = 2.6666666667') == mue.FeedForward.dense(2048)
    assert block('feed_forward = "dense@1000"') == mue.FeedForward.dense(1000)
    assert block('feed_forward = "8e2a1s"\nexpert_width = 64') == mue.FeedForward.moe(8, 2, 64, shared=1)
    assert block('feed_forward = "dense@9+4e1a@7"') == mue.FeedForward((9,), (mue.RoutedGroup(4, 1, 7),))


def test_single_roles(tmp_path: Path) -> None:
    reference = mue.read_reference(write(tmp_path, GOOD + "\n[tuned.embedding]\nlr = 4e-3\n"))
    plan = mue.transfer(reference, reference.shape)
    assert plan.row("embedding").lr == 4e-3
    assert plan.row("readout").lr == 1e-3


def test_experts_follow_the_dense_block_that_was_tuned(tmp_path: Path) -> None:
    own = "\n[tuned.dense_down]\ninit_std = 0.0025\nlr = 5e-4\n[tuned.dense_up]\nlr = 2e-3\n"
    reference = mue.read_reference(write(tmp_path, GOOD + own))
    plan = mue.transfer(reference, mue.ModelShape(128, 32, mue.FeedForward.parse("dense@64+8e1a@64")))
    for role in ("shared_down", "expert_down"):
        assert (plan.row(role).init_std, plan.row(role).lr) == (0.0025, 5e-4)
    assert plan.row("expert_up").lr == pytest.approx(2e-3 * 8 ** (-1 / 3))
    assert plan.row("shared_up").lr == 2e-3
    assert plan.row("router").lr == 1e-3
    # A reference that has experts of its own says what they had.
    routed = reference.shape.width, reference.shape.depth, mue.FeedForward.parse("8e2a@64")
    moe = mue.Reference(mue.ModelShape(*routed), reference.budget, reference.hyper, tuned=reference.tuned)
    assert mue.transfer(moe, moe.shape).row("expert_down").lr == 1e-3


# what to change in GOOD, the line the message must name, what it must say
BAD = [
    ("width = 128", "widht = 128", 2, "unknown key 'widht' in [shape] (did you mean 'width'?)"),
    ("steps = 25000", "stpes = 25000", 9, "did you mean 'steps'?"),
    ("[budget]", "[bugdet]", 7, "unknown name 'bugdet' (did you mean 'budget'?)"),
    ("width = 128", "width = -128", 2, "width = -128: give a whole number"),
    ("width = 128", "width = 128.0", 2, "give a whole number"),
    ("depth = 32", "depth = true", 3, "give a whole number"),
    ("depth = 32", "depth = 0", 3, "depth = 0"),
    ('"dense"', '"64x"', 4, "cannot read '64x'"),
    ('"dense"', "12", 4, "give a layout in quotes"),
    ('"dense"', '"64e8a"', 5, "expansion beside"),
    ("expansion = 1.0", "expansion = 0.3", 5, "not a whole width"),
    ("expansion = 1.0", "expansion = 1e308", 5, "not a whole width"),
    ("expansion = 1.0", "expert_width = 64", 5, "expert_width beside"),
    ('"dense"\nexpansion = 1.0', '"8e2a@32"\nexpert_width = 64', 5, "every part has its width"),
    ("eps = 1e-8", "eps = 1e-8\n[tuned.norm]\nweight_decay = 0.1", 18, "has no meaning for norm"),
    ("lr = 1e-3", "lr = nan", 12, "give a finite number above 0"),
    ("lr = 1e-3", "lr = inf", 12, "give a finite number above 0"),
    ("lr = 1e-3", "lr = -1.0", 12, "give a finite number above 0"),
    ("lr = 1e-3", 'lr = "fast"', 12, "give a finite number above 0"),
    ("betas = [0.95, 0.95]", "betas = [0.95]", 15, "give two numbers"),
    ("betas = [0.95, 0.95]", "betas = [0.95, 1.0]", 15, "must lie between 0 and 1"),
    ("betas = [0.95, 0.95]", "betas = [0.0, 0.95]", 15, "finite number above 0"),
    ("eps = 1e-8", "route_scale = 2.0", 16, "with a dense reference"),
    ("lr = 1e-3", "", 11, "[hyper] has no 'lr'"),
]


@pytest.mark.parametrize(("old", "new", "line", "says"), BAD)
def test_bad_files_name_the_line(tmp_path: Path, old: str, new: str, line: int, says: str) -> None:
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(FileError) as caught:
        mue.read_reference(path)
    message = str(caught.value)
    assert says in message
    assert message.startswith(f"{path}:{line}:"), message


def test_numbers_too_long_to_print(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="64 bits"):
        mue.read_reference(write(tmp_path, GOOD.replace("width = 128", f"width = 0x{'f' * 8000}")))
    with pytest.raises(mue.MueError, match="64 bits"):
        mue.FeedForward.dense(1 << 20_000)
    huge = GOOD.replace("width = 128", "width = 1000000000000000").replace("expansion = 1.0\n", "")
    assert mue.read_reference(write(tmp_path, huge)).shape.active_width == 10**15


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path, lm_reference: mue.Reference) -> None:
    assert mue.read_reference(write(tmp_path, "\ufeff" + GOOD)) == lm_reference


@pytest.mark.parametrize("table", ["[tuned.embedding]\nroute_scale = 3.0", "[tuned.norm]\ninit_std = 3.0"])
def test_tuned_keys_without_a_meaning(tmp_path: Path, table: str) -> None:
    with pytest.raises(FileError, match="has no meaning for"):
        mue.read_reference(write(tmp_path, f"{GOOD}\n{table}\n"))


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"no such file.*\[shape\], \[budget\] and \[hyper\]"):
        mue.read_reference(tmp_path / "none.toml")
    with pytest.raises(FileError, match="cannot be read"):
        mue.read_reference(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match="not UTF-8"):
        mue.read_reference(tmp_path / "bytes.toml")
    with pytest.raises(FileError, match=r"not valid TOML.*line 2"):
        mue.read_reference(write(tmp_path, "[shape]\nwidth =\n"))
    with pytest.raises(FileError, match=r"no \[budget\] table"):
        mue.read_target(write(tmp_path, '[shape]\nwidth = 1\ndepth = 1\nfeed_forward = "dense"\n'))
    with pytest.raises(FileError, match=r"write a table \[shape\]"):
        mue.read_target(write(tmp_path, "shape = 3\n"))
    with pytest.raises(FileError, match="'embedding'"):
        mue.read_reference(write(tmp_path, GOOD + "\n[tuned.embeding]\nlr = 4e-3\n"))
    with pytest.raises(FileError, match="'lr'"):
        mue.read_reference(write(tmp_path, GOOD + "\n[tuned.embedding]\nlrr = 4e-3\n"))


# what to change in GOOD, and what the error carries: field, what was given
CARRIED = [
    ("width = 128", "width = -128", "width", -128),
    ("depth = 32", "", "depth", None),
    ("widt", "wdit", "wdith", None),
    ("betas = [0.95, 0.95]", "betas = [0.95, 1.0]", "betas", 1.0),
    ('"dense"\nexpansion = 1.0', '"8e2a"', "expert_width", None),
    ('"dense"\nexpansion = 1.0', '"8e9a"\nexpert_width = 4', "feed_forward", None),
    ('"dense"\nexpansion = 1.0', '"8e2a"\nexpert_width = 0', "expert_width", 0),
    ("eps = 1e-8", "eps = 1e-8\n[tuned.norm]\nlrr = 1.0", "lrr", None),
]


@pytest.mark.parametrize(("old", "new", "field", "given"), CARRIED)
def test_errors_carry_the_key_and_its_value(tmp_path: Path, old: str, new: str, field: str, given: object) -> None:
    with pytest.raises(FileError) as caught:
        mue.read_reference(write(tmp_path, GOOD.replace(old, new, 1)))
    assert caught.value.field == field
    if given is not None:
        assert caught.value.given == given
