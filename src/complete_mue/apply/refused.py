"""Mixture-of-Experts families of transformers that are not supported, each with its reason."""

from __future__ import annotations

_HYPER = (
    "hyper-connections carry several residual streams and mix them with learned weights, so the residual multiplier "
    "has no place of its own"
)
_STATE_SPACE = "its state-space layers (A_log, D, dt, conv1d) have no transfer rule in Complete-muE"
_ENCODER_DECODER = "it is an encoder-decoder whose experts have a capacity and drop tokens, so active experts differ"
_TEXT_CLASS = "transformers' AutoModelForCausalLM does not build it by itself, only inside a model that takes images"


def _images(text: str, more: str = "images") -> str:
    return f"it also takes {more}, and towers for them have no transfer rule; train its language model alone ({text})"


REFUSED: dict[str, str] = {
    **dict.fromkeys(
        ("llama4", "llama4_text"),
        "its router multiplies the experts' input by a sigmoid instead of weighting their outputs, so the route scale "
        "has no meaning there",
    ),
    "jamba": _STATE_SPACE,
    "bamba": _STATE_SPACE,
    "nemotron_h": "each of its layers is one branch alone (a state space, attention or experts), so layers have no "
    "feed-forward block of their own, and " + _STATE_SPACE.removeprefix("its "),
    "dbrx": "its experts lie in one flat matrix (experts times hidden, width), so experts and hidden width are no "
    "axes of a tensor",
    "jetmoe": "its attention projections are routed experts too, with a k and weights of their own: there is no rule "
    "for routed attention",
    "longcat_flash": "a layer has two attention and two dense blocks around one routed block, and some of its experts "
    "are identities, so the active width differs from token to token",
    "zaya": "its router is a network over a state that is carried from layer to layer and may choose no expert, and "
    "learned scales stand on the residual stream",
    "beam": "its residual stream is averaged with a weight that depends on the depth, so the residual multiplier is "
    "not free",
    "doge": "its experts are pairs of rows found by product keys, and learned scales stand on the residual stream",
    "axk2": "its norms hold small networks that gate the residual stream",
    "deepseek_v4": _HYPER,
    "hy_v4": _HYPER,
    "glm5_next_text": _HYPER,
    "qwen4_exp_text": _HYPER,
    "gemma4_text": "its experts run beside a dense block with norms of their own, and every layer has an embedding of "
    "its own",
    "diffusion_gemma_text": "its experts run beside a dense block with norms of their own, and it denoises blocks "
    "instead of predicting the next token",
    "inkling_text": "short convolutions stand behind both branches of a layer, and its shared experts are weighted by "
    "the router together with the routed ones",
    "muse_spark_text": "learned gates stand on the residual stream of every layer",
    "mistral4": _TEXT_CLASS,
    "mistral_large4_text": _TEXT_CLASS,
    "step3p5": _TEXT_CLASS,
    "qwen3_vl_moe_text": _TEXT_CLASS + "; a qwen3_moe has the same layers",
    "qwen3_omni_moe_text": _TEXT_CLASS + " and sound; a qwen3_moe has the same layers",
    "qwen3_omni_moe_talker_text": "it is the part of a model of speech that a thinker drives; a qwen2_moe has the "
    "same layers",
    "glm4v_moe_text": _TEXT_CLASS + "; a glm4_moe has the same layers",
    "ernie4_5_vl_moe_text": "its experts are two sets of different width, for words and for images, each with a router",
    "deepseek_ocr2_text": _TEXT_CLASS + "; a deepseek_v2 has like layers",
    "unlimited_ocr_text": _TEXT_CLASS + "; a deepseek_v2 has like layers",
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
    "openai_privacy_filter": "it labels words instead of predicting the next one: it has no readout over a vocabulary",
    **dict.fromkeys(
        ("vitpose", "vitpose_backbone"),
        "it finds poses in pictures, and its experts belong to data sets: nothing routes tokens to them",
    ),
}
