"""Triton kernels for forward passes of Llama-like decoders over few tokens, seven per layer.

Import a module of this package only where Triton is installed: PyTorch's builds for GPUs contain it. With the
environment variable `TRITON_INTERPRET=1` the kernels run on a CPU, slowly, for tests.
"""
