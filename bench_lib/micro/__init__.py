"""``micro_benchmarking_pytorch.py`` by another name: its command line over the suite's workers.

``python -m bench_lib.micro`` takes the flags, prints the lines and writes the files of ROCm's
tool (github.com/ROCm/pytorch-micro-benchmarking), and measures as the suite does.  Under
torchrun each of its processes is a rank.
"""
