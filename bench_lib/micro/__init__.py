"""The command line of ``micro_benchmarking_pytorch.py`` on top of the suite's workers.

``python -m bench_lib.micro`` has the flags, output and files of ROCm's tool
(github.com/ROCm/pytorch-micro-benchmarking), and measures as the suite does.  Under torchrun each
process is a rank.
"""
