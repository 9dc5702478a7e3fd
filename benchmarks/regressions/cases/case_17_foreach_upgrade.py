"""An upgrade of torch that made foreach Adam twice as slow."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=17,
    title="With torch 2.12, foreach Adam takes twice the time for bf16 parameters of FSDP2",
    threads=("NVIDIA-NeMo/Automodel#3089", "NVIDIA-NeMo/Automodel#3110"),
    left_out="needs two versions of torch, and `--ddpperf-against-python` compares their times",
)
