"""SonicMoE's tuners with a handful of candidates, for tests: from all of them it takes minutes to choose."""

from __future__ import annotations

from complete_mue.lab.kernels.sonic import is_default


def few_tilings() -> None:
    """Leave its own default tiling for Hopper, and gather-sums of a token's whole row or half of it.

    SonicMoE times 358 tilings for each of its products and about 70 for its gather-sum whenever a shape is new.
    """
    import triton
    from quack import gemm_interface
    from sonicmoe.functional.reduction_over_k_gather import token_gather_sum_kernel

    for tuner in (gemm_interface.gemm_tuned, gemm_interface.gemm_gated_tuned, gemm_interface.gemm_dgated_tuned):
        tuner.configs = [c for c in tuner.configs if is_default(c.kwargs["config"])]
    token_gather_sum_kernel.configs = [
        triton.Config({"BLOCK_H": columns, "BLOCK_K": rows}, num_warps=8, num_stages=4)
        for columns, rows in ((4096, 1), (4096, 4), (2048, 8))
    ]
