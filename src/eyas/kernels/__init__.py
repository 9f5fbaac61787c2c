"""Attention kernels for CPU and CUDA, their build, and ahead-of-time compiled forwards."""
