"""Sends between stages of a pipeline that block."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=32,
    title="sends between the stages of a pipeline block, and stages wait for each other",
    threads=("pytorch/pytorch#172668",),
    left_out="the counts are equal: only times can be red",
)
