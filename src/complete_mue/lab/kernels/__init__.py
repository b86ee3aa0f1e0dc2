"""One function, many kernels: what a token's routed experts give, computed as fast as the machine at hand allows."""

from complete_mue.lab.kernels.dispatch import Kernel, KernelInfo, choose, list_kernels, register, routed_experts

__all__ = ["Kernel", "KernelInfo", "choose", "list_kernels", "register", "routed_experts"]
