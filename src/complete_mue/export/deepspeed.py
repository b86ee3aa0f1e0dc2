"""DeepSpeed: its optimizer section, and parameter groups for models with Hugging Face names, as JSON."""

from __future__ import annotations

from complete_mue.export.hf import FAMILIES, adamw, document
from complete_mue.plan.plan import Plan

NAME = "deepspeed"
CHECKED = "deepspeed 0.19.8 on CPU (its config, engine and AdamW groups without ZeRO, one process)"

_USE = f"""\
Use: give `config` (with your batch and precision settings) to deepspeed.initialize(config=...) and the groups, each
with its `params`, as model_parameters. A trainable parameter belongs to the group whose pattern matches its whole name
(re.fullmatch); leave out groups that match nothing. Keep the names: each group needs one of its own under ZeRO. Draw
weights with init_std before deepspeed.initialize; where it is null, gains start at 1 and biases at 0.
DeepSpeed's own schedulers set one learning rate for all groups unless they are given a list, one value per group, in
the groups' order; a LambdaLR is safe. The config fields under `requires` must have these values where a model has them;
groups (4g) and ranks of latent attention that are held fixed have no equivalent. gradient_clipping is off: DeepSpeed's
norm is the plain one.
Names are those of Hugging Face models: {", ".join(FAMILIES)}.
Not covered: deepspeed.moe.layer.MoE, whose gate does not normalize a single weight and drops tokens by default."""


def render(plan: Plan) -> str:
    """The JSON text."""
    config = {"optimizer": {"type": "AdamW", "params": adamw(plan.hyper)}, "gradient_clipping": 0.0}
    return document(plan, NAME, CHECKED, _USE, {"config": config})
