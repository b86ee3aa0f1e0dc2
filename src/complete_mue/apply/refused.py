"""Mixture-of-Experts families of transformers that are not supported, each with its reason."""

from __future__ import annotations

_HYPER = (
    "hyper-connections carry several residual streams and mix them with learned weights, so the residual multiplier "
    "has no place to go"
)
_STATE_SPACE = "Complete-muE has no transfer rule for its state-space layers (A_log, D, dt, conv1d)"
_ENCODER_DECODER = (
    "it is an encoder-decoder whose experts drop tokens beyond a capacity, so the number of active experts varies"
)
_TEXT_CLASS = "transformers' AutoModelForCausalLM does not build it alone, only as part of a model that takes images"


def _images(text: str, more: str = "images") -> str:
    return (
        f"it also takes {more}, and Complete-muE has no transfer rule for their encoders; train its language model "
        f"alone ({text})"
    )


REFUSED: dict[str, str] = {
    **dict.fromkeys(
        ("llama4", "llama4_text"),
        "its router multiplies the experts' input by a sigmoid instead of weighting their outputs, so the route scale "
        "has no meaning",
    ),
    "jamba": _STATE_SPACE,
    "bamba": _STATE_SPACE,
    "nemotron_h": "each of its layers is one branch alone (a state space, attention or experts), so layers have no "
    "feed-forward block of their own, and " + _STATE_SPACE,
    "dbrx": "its experts are stored as one flat matrix (experts times hidden, width), so experts and hidden width are "
    "not separate axes",
    "jetmoe": "its attention projections are routed experts too, with their own k and routing weights, and there is "
    "no rule for routed attention",
    "longcat_flash": "a layer has two attention and two dense blocks around one routed block, and some of its experts "
    "return their input unchanged, so the active width differs from token to token",
    "zaya": "its router is a network with a state passed from layer to layer and may choose no expert, and "
    "learned scales multiply the residual stream",
    "beam": "its residual stream is averaged with a weight that depends on the depth, so the residual multiplier "
    "cannot be set freely",
    "doge": "its experts are pairs of rows found by product keys, and learned scales multiply the residual stream",
    "axk2": "its norms contain small networks that gate the residual stream",
    "deepseek_v4": _HYPER,
    "hy_v4": _HYPER,
    "glm5_next_text": _HYPER,
    "qwen4_exp_text": _HYPER,
    "gemma4_text": "its experts run in parallel to a dense block, each with its own norms, and every layer has its own "
    "embedding",
    "diffusion_gemma_text": "its experts run in parallel to a dense block, each with its own norms, and it denoises "
    "blocks instead of predicting the next token",
    "inkling_text": "short convolutions follow both branches of a layer, and its router weights "
    "the shared experts together with the routed ones",
    "muse_spark_text": "learned gates multiply the residual stream in every layer",
    "mistral4": _TEXT_CLASS,
    "mistral_large4_text": _TEXT_CLASS,
    "step3p5": _TEXT_CLASS,
    "qwen3_vl_moe_text": _TEXT_CLASS + "; a qwen3_moe has the same layers",
    "qwen3_omni_moe_text": _TEXT_CLASS + " and sound; a qwen3_moe has the same layers",
    "qwen3_omni_moe_talker_text": "it is the part of a speech model that a thinker drives; a qwen2_moe has the "
    "same layers",
    "glm4v_moe_text": _TEXT_CLASS + "; a glm4_moe has the same layers",
    "ernie4_5_vl_moe_text": "it has two sets of experts of different width, for text and for images, each with its "
    "own router",
    "deepseek_ocr2_text": _TEXT_CLASS + "; a deepseek_v2 has similar layers",
    "unlimited_ocr_text": _TEXT_CLASS + "; a deepseek_v2 has similar layers",
    "aria": _images("aria_text"),
    "deepseek_ocr2": _images("deepseek_v2"),
    "unlimited_ocr": _images("deepseek_v2"),
    "ernie4_5_vl_moe": _images("ernie4_5_moe"),
    "gemma4": _images("gemma3_text, which is dense", "images and sound"),
    "diffusion_gemma": _images("gemma3_text, which is dense"),
    "glm4v_moe": _images("glm4_moe"),
    "glm5_next": _images("glm_moe_dsa"),
    "inkling_mm_model": _images("any supported family", "images and sound"),
    "minimax_m3_vl": _images("minimax_m3_vl_text"),
    "mistral_large4": _images("deepseek_v32"),
    "muse_spark": _images("any supported family", "images and sound"),
    "qwen3_5_moe": _images("qwen3_5_moe_text"),
    "qwen3_omni_moe": _images("qwen3_moe", "images and sound"),
    "qwen3_omni_moe_thinker": _images("qwen3_moe", "images and sound"),
    "qwen3_vl_moe": _images("qwen3_moe"),
    "qwen4_exp": _images("qwen3_next"),
    "step3p7": _images("any supported family"),
    "nllb-moe": _ENCODER_DECODER,
    "switch_transformers": _ENCODER_DECODER,
    "openai_privacy_filter": "it labels tokens instead of predicting the next one, so it has no readout over a "
    "vocabulary",
    **dict.fromkeys(
        ("vitpose", "vitpose_backbone"),
        "it finds poses in images, and its experts belong to data sets, with no router",
    ),
}
