"""Changes of counts in words; the numbers are small enough to be read off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.ranks import merged
from pytest_ddpperf.records.sites import RECORDED_LINES, CallSite, of_lines
from pytest_ddpperf.reports.count_changes import difference_text
from pytest_ddpperf.reports.count_words import LOADERS
from pytest_ddpperf.reports.findings import finding_text
from tests.factories import make_counts as counts

MIB = 2.0**20


def reduces(calls: float, nbytes: float) -> dict[str, dict[str, float]]:
    """All-reduces: how many, and the bytes of all."""
    return {"collective_calls": {"all_reduce": calls}, "collective_bytes": {"all_reduce": nbytes}}


def of_one(metric: str, **parts: float) -> dict[str, dict[str, float]]:
    return {metric: parts}


@pytest.mark.parametrize(
    ("metric", "then", "now", "expected"),
    [
        (
            "collective_calls",
            reduces(5, 4 * MIB),
            reduces(9, 4 * MIB),
            ["all_reduce 5 -> 9 calls per step (+4), bytes unchanged"],
        ),
        # The bytes have a line of their own.
        ("collective_calls", reduces(5, 4), reduces(10, 8), ["all_reduce 5 -> 10 calls per step (+5)"]),
        (
            "collective_bytes",
            reduces(5, 2 * MIB),
            reduces(5, 4 * MIB),
            ["all_reduce 2.00 MiB -> 4.00 MiB per step (+2.00 MiB, +100 %), calls unchanged"],
        ),
        (  # 4 bytes of 4 MiB would not be seen in three digits
            "collective_send_bytes",
            of_one("collective_send_bytes", all_reduce=4 * MIB),
            of_one("collective_send_bytes", all_reduce=4 * MIB + 4),
            ["all_reduce 4,194,304 B -> 4,194,308 B per step (+4 B)"],
        ),
        (
            "flops",
            of_one("flops", renamed=5e3),
            of_one("flops", head=5e3),
            ["head 0 kFLOP -> 5 kFLOP per step (+5 kFLOP)", "renamed 5 kFLOP -> 0 kFLOP per step (-5 kFLOP, -100 %)"],
        ),
        (  # the fused operator that is gone says more than what came in its place
            "operators",
            {"operators": {"aten._foreach_lerp_": 1.0}},
            {"operators": {"aten.lerp_": 4.0}},
            ["aten._foreach_lerp_ 1 -> 0 per step (-1)", "aten.lerp_ 0 -> 4 per step (+4)"],
        ),
        ("collective_calls", reduces(1, 0), reduces(2, 0), ["all_reduce 1 -> 2 calls per step (+1)"]),  # of no bytes
        ("operators", of_one("operators", mm=3.0), of_one("operators", mm=3.0), []),
        (  # as where several steps belong together
            "collective_calls",
            of_one("collective_calls", all_reduce=0.25),
            of_one("collective_calls", all_reduce=0.5),
            ["all_reduce 0.25 -> 0.5 calls per step (+0.25)"],
        ),
        (
            "collective_bytes",
            of_one("collective_bytes", all_reduce=4 * MIB + 1 / 3),
            of_one("collective_bytes", all_reduce=4 * MIB),
            ["all_reduce 4,194,304.333 B -> 4,194,304 B per step (-0.333 B)"],
        ),
    ],
)
def test_a_change_is_spelled_out(
    metric: str, then: dict[str, dict[str, float]], now: dict[str, dict[str, float]], expected: list[str]
) -> None:
    assert difference_text(metric, counts(then), counts(now)) == expected


def test_modules_that_only_have_another_prefix_do_not_flood_the_list() -> None:
    """As of an adapter's wrapper that is gone."""
    wrapped = {f"base.model.layers.{number}": 4e6 for number in range(4)}
    whole = {f"layers.{number}": 6e6 for number in range(4)}
    assert difference_text("flops", counts({"flops": wrapped}), counts({"flops": whole})) == [
        "most modules have other names now"
    ]
    one_more = {**wrapped, "head": 1e6}
    assert len(difference_text("flops", counts({"flops": wrapped}), counts({"flops": one_more}))) == 1
    few = difference_text("flops", counts({"flops": {"a.0": 4e6}}), counts({"flops": {"0.2": 6e6}}))
    assert [line.split()[0] for line in few] == ["module", "a.0"]


def test_activations_that_are_computed_again_are_called_that() -> None:
    plain = counts({"flops": {"layer": 6e6}, "flops_recomputed": {}})
    again = counts({"flops": {"layer": 8e6}, "flops_recomputed": {"layer": 2e6}})
    assert difference_text("flops", plain, again) == [
        "activations are computed again in backward (activation checkpointing): 0 MFLOP -> 2 MFLOP per step (+2 MFLOP)",
        "layer 6 MFLOP -> 8 MFLOP per step (+2 MFLOP, +33 %)",
    ]
    longer = counts({"flops": {"layer": 16e6}, "flops_recomputed": {"layer": 4e6}, "flops_forward": {"layer": 4e6}})
    short = replace(again, totals={**again.totals, "flops_forward": 2e6})
    assert difference_text("flops", short, longer) == ["layer 8 MFLOP -> 16 MFLOP per step (+8 MFLOP, +100 %)"]
    of_old_version = counts({"flops": {"layer": 6e6}})
    assert len(difference_text("flops", of_old_version, again)) == 1, "nothing is known of it"


def of_gradients(backward: float, recorded: float, **totals: float) -> Counts:
    """Returns counts of a step whose forward has 4 MFLOP."""
    parts = {"flops": {"layer": 4e6 + backward}, "flops_forward": {"layer": 4e6}, "flops_backward": {"layer": backward}}
    of_step = {"recorded_operators": recorded, "backward_passes": 1.0, "flops_recomputed": 0.0, **totals}
    made = counts(parts)
    return replace(made, totals={**made.totals, **of_step})


def test_gradients_that_were_not_computed_before_are_named_first() -> None:
    lost, whole = difference_text("flops", of_gradients(4e6, 20.0), of_gradients(8e6, 30.0))
    assert lost == (
        "backward computes more gradients, as after a lost no_grad, detach() or requires_grad_(False): "
        "4 MFLOP -> 8 MFLOP per step (+4 MFLOP, +100 %)"
    )
    assert whole == "layer 8 MFLOP -> 12 MFLOP per step (+4 MFLOP, +50 %)"


@pytest.mark.parametrize(
    "now",
    [
        of_gradients(8e6, 20.0),
        of_gradients(8e6, 30.0, backward_passes=2.0),
        of_gradients(8e6, 30.0, flops_forward=8e6),
        of_gradients(12e6, 30.0),
    ],
    ids=["nothing more is recorded", "another pass", "more forward", "calls of autograd.grad"],
)
def test_other_work_of_backward_is_no_lost_no_grad(now: Counts) -> None:
    assert len(difference_text("flops", of_gradients(4e6, 20.0), now)) == 1


def test_more_trained_parameters_of_the_same_model_are_called_that() -> None:
    adapter = {"parameters": 1000.0, "gradients": 10.0, "optimizer_state": 20.0}
    whole = {"parameters": 990.0, "gradients": 990.0, "optimizer_state": 1980.0}
    then, now = counts({"model_state_bytes": adapter}), counts({"model_state_bytes": whole})
    assert difference_text("model_state_bytes", then, now)[0] == (
        "trainable parameters grew: 100 % of them have gradients, 1 % before"
    )
    larger = counts({"model_state_bytes": {name: 2 * size for name, size in whole.items()}})
    gathered = counts({"model_state_bytes": {**whole, "parameters": 1980.0}})  # of frozen units that stay whole
    for other in (larger, gathered):
        assert not [line for line in difference_text("model_state_bytes", now, other) if "trainable" in line]


def test_bytes_that_grow_with_the_gradients_are_called_that() -> None:
    """As of weights that are no longer tied: 1.5 MiB of gradients become 2 MiB."""
    sides = [
        counts({"collective_bytes": {"all_reduce": mib * MIB}, "model_state_bytes": {"gradients": mib * MIB}})
        for mib in (1.5, 2.0)
    ]
    assert difference_text("collective_bytes", *sides)[0] == "a rank has more gradients, 1.50 MiB -> 2.00 MiB"
    assert "gradients" not in " ".join(difference_text("collective_bytes", *sides[::-1]))


@pytest.mark.parametrize(
    ("varied", "padded"),
    [(["flops", "peak_tensor_bytes"], True), (["flops", "operators"], False), (["operators"], False)],
)
def test_for_counts_that_vary_like_padded_batches_the_cure_is_named(varied: list[str], *, padded: bool) -> None:
    every = [(metric, "layer 6 in one step, 8 in the next", True, ()) for metric in varied]
    told = finding_text(Finding("ungated_counts", {"counts": every, "paired": False, "renew": False}))
    assert ("pad them to one length, or pack them" in told) is padded


def test_only_the_largest_changes_are_named() -> None:
    now = {"operators": {f"aten.op{number}": float(number) for number in range(1, 8)}}
    lines = difference_text("operators", counts({"operators": {}}), counts(now))
    assert lines[0] == "aten.op7 0 -> 7 per step (+7)"
    assert lines[5:] == ["and 2 smaller changes"]
    without_parts = counts({}, operators=3.0), counts({}, operators=4.0)
    assert difference_text("operators", *without_parts) == ["operators 3 -> 4 per step (+1)"]


def test_buckets_are_reported_by_number_and_size() -> None:
    then = counts({"ddp_buckets": {"bucket 0": 4 * MIB}}, ddp_buckets=1.0)
    four = counts({"ddp_buckets": {f"bucket {number}": MIB for number in range(4)}}, ddp_buckets=4.0)
    eight = counts({"ddp_buckets": {f"bucket {number}": MIB / 2 for number in range(8)}}, ddp_buckets=8.0)
    other = counts({"ddp_buckets": {"bucket 0": 2 * MIB}}, ddp_buckets=1.0)
    assert difference_text("ddp_buckets", then, then) == []
    assert difference_text("ddp_buckets", then, other) == ["1 bucket as before, bucket 0 4.00 MiB -> 2.00 MiB"]
    site = CallSite(part="buckets", file="a.py", line=7, function="build", source="", backward=False, value=1.0)
    assert difference_text("ddp_buckets", then, replace(other, sites={"ddp_buckets": (site,)})) == [
        "1 bucket as before, bucket 0 4.00 MiB -> 2.00 MiB",
        "made at a.py:7 in build",
    ]
    assert difference_text("ddp_buckets", then, four) == [
        "1 -> 4 buckets, 4.00 MiB -> 1.00 MiB + 1.00 MiB + 1.00 MiB + 1.00 MiB"
    ]
    assert difference_text("ddp_buckets", four, eight) == [
        "4 -> 8 buckets, 1.00 MiB + 1.00 MiB + 1.00 MiB + 1.00 MiB -> 512 KiB to 512 KiB each"
    ]


def test_if_the_number_of_buckets_stays_only_changed_ones_are_reported() -> None:
    seven = counts({"ddp_buckets": {f"bucket {number}": 25 * MIB for number in range(7)}}, ddp_buckets=7.0)
    parts = {**seven.details["ddp_buckets"], "bucket 2": 20 * MIB, "bucket 3": 30 * MIB}
    assert difference_text("ddp_buckets", seven, counts({"ddp_buckets": parts}, ddp_buckets=7.0)) == [
        "7 buckets as before, bucket 2 25.0 MiB -> 20.0 MiB, bucket 3 25.0 MiB -> 30.0 MiB"
    ]
    half = counts({"ddp_buckets": {f"bucket {number}": 12 * MIB for number in range(7)}}, ddp_buckets=7.0)
    (line,) = difference_text("ddp_buckets", seven, half)
    assert line.endswith("bucket 4 25.0 MiB -> 12.0 MiB, and 2 more buckets")


def on_two(first: float, second: float) -> Counts:
    return merged([counts({"operators": {"aten.mm": times}}) for times in (first, second)])


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        ((3, 3), (3, 4), ["aten.mm 3 -> 4 per step (+1) on rank 1 alone"]),
        ((3, 0), (3, 2), ["rank 1 0 -> 2 per step (+2)"]),  # the largest is as before
        ((3, 0), (3, 3), ["rank 1 0 -> 3 per step (+3)"]),  # as it is on both now
        ((3, 0), (0, 3), ["rank 0 3 -> 0 per step (-3)", "rank 1 0 -> 3 per step (+3)"]),
        ((3, 4), (3, 4), []),
    ],
)
def test_changed_ranks_are_listed_if_ranks_differ(
    then: tuple[float, float], now: tuple[float, float], expected: list[str]
) -> None:
    assert difference_text("operators", on_two(*then), on_two(*now)) == expected


def test_ranks_with_equal_totals_but_different_parts_are_listed_by_rank() -> None:
    """In subgroups, as between the stages of a pipeline."""
    mine, sends, receives = (
        counts({"collective_calls": {name: 1.0}, "operators": {name: 1.0}}) for name in ("all_reduce", "send", "recv")
    )
    alike, apart = merged([mine, mine]), merged([mine, sends])
    assert alike.details_by_rank == {}
    assert apart.details_by_rank == {"collective_calls": {"all_reduce": (1.0, 0.0), "send": (0.0, 1.0)}}
    assert difference_text("collective_calls", alike, apart) == [
        "rank 1 all_reduce 1 -> 0 calls per step (-1)",
        "rank 1 send 0 -> 1 calls per step (+1)",
    ]
    assert difference_text("collective_calls", apart, merged([mine, receives])) == [
        "rank 1 send 1 -> 0 calls per step (-1)",
        "rank 1 recv 0 -> 1 calls per step (+1)",
    ]
    assert difference_text("collective_calls", apart, apart) == []
    assert difference_text("operators", alike, apart) == []


def test_of_many_changed_ranks_some_are_listed() -> None:
    def ranks(times: float) -> Counts:
        return merged([counts({"operators": {"aten.mm": times * rank}}) for rank in range(1, 9)])

    lines = difference_text("operators", ranks(1), ranks(2))
    assert lines[1] == "rank 0 1 -> 2 per step (+1)"
    assert lines[6:] == ["and 2 more ranks"]  # the last one changed as the total did


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ((11, 3, 3), []),
        ((11, 3, 6), ["rank 2 1 -> 6 per step (+5)"]),
        ((11, 3, 1), ["rank 0 9 -> 11 per step (+2)", "rank 1 1 -> 3 per step (+2)"]),
    ],
)
def test_ranks_that_change_like_the_total_are_listed_if_another_one_is_unchanged(
    now: tuple[float, ...], told: list[str]
) -> None:
    """Rank 0 does more than the others, as one that logs."""
    sides = [merged([counts({"operators": {"aten.mm": times}}) for times in ranks]) for ranks in ((9, 1, 1), now)]
    assert difference_text("operators", *sides) == ["aten.mm 9 -> 11 per step (+2)", *told]


def reduced(*sites: CallSite) -> Counts:
    """All-reduces of these lines."""
    calls = sum(site.value for site in sites)
    return replace(counts({"collective_calls": {"all_reduce": calls}}), sites={"collective_calls": sites})


def site(line: int, function: str = "step", value: float = 1.0, file: str = "train.py", **more: Any) -> CallSite:
    fields = {"part": "all_reduce", "source": f"reduce({function})", "backward": False, **more}
    return CallSite(file=file, line=line, function=function, value=value, **fields)


def places(then: Counts, now: Counts) -> str:
    (line,) = difference_text("collective_calls", then, now)
    return line.partition("): ")[2]


def test_new_lines_come_first_and_lines_that_are_not_named_are_counted() -> None:
    then = [site(41), *(site(line, f"f{line}") for line in (1, 2))]
    now = [site(41, value=4.0), *(site(line, f"f{line}") for line in (7, 8))]
    assert places(reduced(*then), reduced(*now)) == (
        "the new one at train.py:7 in f7, the new one at train.py:8 in f8, 1 -> 4 at train.py:41 in step, "
        "and 2 other lines"
    )


def test_a_line_whose_work_grew_a_little_has_the_digits_that_show_it() -> None:
    sides = [
        replace(
            counts({"flops": {"layer": more + 3.2e9}}), sites={"flops": (site(44, value=more), site(45, value=rest))}
        )
        for more, rest in ((26e6, 3.2e9), (79e6, 3.2004e9))
    ]
    (line,) = difference_text("flops", *sides)
    assert line.endswith(
        "26 MFLOP -> 79 MFLOP at train.py:44 in step, 3,200,000,000 FLOP -> 3,200,400,000 FLOP at train.py:45 in step"
    )


def test_a_line_that_does_less_is_named_with_its_new_number() -> None:
    then, now = reduced(site(41), site(45, "f")), reduced(site(51))
    other = replace(site(61, "f"), part="item")
    now = replace(now, sites={**now.sites, "synchronisations": (other,)})
    assert places(then, now) == "1 gone from train.py:61 in f"


def test_a_rank_that_does_more_has_its_line_if_another_one_does_most() -> None:
    """Rank 0 does the most, now and then; ranks 1 and 2 do more than before."""
    usual, new = site(41, value=2.0), site(52, "log")
    then = merged([reduced(site(30, value=9.0)), reduced(usual), reduced(usual)])
    now = merged([reduced(site(30, value=9.0)), reduced(usual, new), reduced(usual, new)])
    assert now.sites_by_rank == {"collective_calls": {"1 2": (usual, new)}}
    assert difference_text("collective_calls", then, now) == [
        "rank 1 2 -> 3 calls per step (+1): the new one at train.py:52 in log",
        "rank 2 2 -> 3 calls per step (+1): the new one at train.py:52 in log",
    ]
    old = replace(then, sites_by_rank={})
    assert difference_text("collective_calls", old, now)[0] == "rank 1 2 -> 3 calls per step (+1)"


@pytest.mark.parametrize(("line", "told"), [(52, []), (53, [": the new one at train.py:53 in f"])])
def test_ranks_that_change_equally_are_listed_if_their_lines_differ(line: int, told: list[str]) -> None:
    log, usual = site(30, "log", value=8.0), site(30, "log")
    now = merged([reduced(log, site(52, "f")), reduced(usual, site(line, "f", source="other"))])
    first, *others = difference_text("collective_calls", merged([reduced(log), reduced(usual)]), now)
    assert first == "all_reduce 8 -> 9 calls per step (+1): the new one at train.py:52 in f"
    assert others == [f"rank 1 1 -> 2 calls per step (+1){where}" for where in told]


def test_recorded_operators_have_their_own_lines_the_most_first_unless_a_new_line_calls_a_model() -> None:
    metric, part = "recorded_operators", "all_reduce"

    def recorded(total: float, *lines: CallSite) -> Counts:
        sites = {metric: (site(41, value=total),), RECORDED_LINES: lines}
        return replace(counts({metric: {part: total}}), sites=sites)

    then = recorded(9.0, site(7, "attend", 3.0), site(9, value=6.0))
    now = recorded(20.0, site(5, "scores", 2.0), site(6, "weights", 12.0), site(9, value=6.0))
    assert difference_text(metric, then, now) == [
        (
            "all_reduce 9 -> 20 per step (+11): 12 new ones at train.py:6 in weights, 2 new ones at train.py:5 in "
            "scores, 3 gone from train.py:7 in attend, a line of the reference"
        )
    ]
    without_no_grad = replace(now, sites={**now.sites, metric: (site(41, value=9.0), site(50, "evaluate", 11.0))})
    assert difference_text(metric, then, without_no_grad) == [
        "all_reduce 9 -> 20 per step (+11): 11 new ones at train.py:50 in evaluate"
    ]


@pytest.mark.parametrize(("more", "told"), [(0.0, True), (7.0, True), (8.0, False)])
def test_a_lost_no_grad_is_named_before_its_effects_unless_as_many_operators_are_new(more: float, told: bool) -> None:  # noqa: FBT001
    """A line records 8 operators that it did not record; it also runs 0, 7 or 8 operators more."""

    def step(calls: float, ran: float, recorded: float) -> Counts:
        of_eval: Any = {"function": "loss", "source": "loss"}
        sites = {
            "operators": (site(9, value=20.0), site(41, value=ran, **of_eval)),
            RECORDED_LINES: (site(9, value=20.0), site(41, value=recorded, **of_eval)),
        }
        return replace(counts({"collective_calls": {"all_reduce": calls}}), sites=sites)

    lines = difference_text("collective_calls", step(2.0, 10.0, 1.0), step(3.0, 10.0 + more, 9.0))
    cause = "autograd records more, as after a lost no_grad or detach(): at train.py:41 in loss"
    assert (lines[0] == cause, len(lines)) == (told, 1 + told)


def test_if_a_baseline_has_lines_only_for_all_operators_together_lines_that_do_more_are_named() -> None:
    def operators(number: float, *lines: CallSite) -> Counts:
        return replace(counts({"operators": {"all_reduce": number}}), sites={"operators": lines})

    kept, other, new = site(41, value=6.0), site(42, "f", part="aten.mm"), site(43, "log", 4.0)
    then, now = operators(6.0, *of_lines([kept, other])), operators(10.0, kept, replace(other, value=9.0), new)
    said = "all_reduce 6 -> 10 per step (+4)"
    assert difference_text("operators", then, now) == [f"{said}: more at train.py:43 in log"]
    assert difference_text("operators", operators(6.0), now) == [said]


def test_new_operators_have_a_line_of_forward_if_there_is_one() -> None:
    then, new = (
        counts({"operators": {"all_reduce": 1.0}}),
        [site(56, value=24.0, backward=True), site(20, "attend", 6.0)],
    )
    now = counts({"operators": {"all_reduce": 31.0}})
    then, now = (
        replace(each, sites={"operators": (site(3), *more)}) for each, more in ((then, ()), (now, new))
    )  # fmt: skip
    assert difference_text("operators", then, now) == [
        "all_reduce 1 -> 31 per step (+30): 6 new ones at train.py:20 in attend, and 1 other line"
    ]


def test_work_that_is_rare_is_a_share_per_step() -> None:
    then, now = reduced(site(41)), reduced(site(41), site(43, "f", 0.1), site(44, "g", 0.1))
    assert difference_text("collective_calls", then, now) == [
        "all_reduce 1 -> 1.2 calls per step (+0.2): 0.1 new ones at train.py:43 in f, 0.1 new ones at train.py:44 in g"
    ]


def test_a_second_forward_pass_has_one_line_for_all_modules_with_any_baseline() -> None:
    """A baseline has lines without modules."""

    def forwards(*lines: tuple[int, float], known: bool = True) -> Counts:
        total = sum(value for _, value in lines)
        sites = [site(line, "main", value, part=name, source=str(line)) for name in ("a", "b") for line, value in lines]
        of_all = of_lines(sites)
        made = counts({"flops": {"a": total, "b": total}})
        return replace(made, sites={"flops": tuple(sites) if known else of_all})

    then, now = forwards((41, 3e6), known=False), forwards((41, 3e6), (42, 1e6))
    assert difference_text("flops", then, now) == [
        "flops 6 MFLOP -> 8 MFLOP per step (+2 MFLOP, +33 %): 2 MFLOP new at train.py:42 in main",
        "a 3 MFLOP -> 4 MFLOP per step (+1 MFLOP, +33 %)",
        "b 3 MFLOP -> 4 MFLOP per step (+1 MFLOP, +33 %)",
    ]


def test_a_line_inside_of_a_package_is_named_after_the_users_line() -> None:
    through = "transformers/trainer.py:2471 in training_step"
    assert places(reduced(), reduced(site(41, "main", through=through))).endswith(
        f"the new one at train.py:41 in main, through {through}"
    )


def test_a_second_call_of_a_helper_function_is_named_by_the_line_of_the_call() -> None:
    def called(caller: str, **more: Any) -> CallSite:
        return site(7, "mean_of_ranks", file="utils.py", caller=caller, caller_source=caller, **more)

    log, step = called("train.py:60 in log"), called("train.py:31 in step")
    assert places(reduced(log), reduced(log, step)) == (
        "the new one at utils.py:7 in mean_of_ranks, called at train.py:31 in step"
    )
    assert places(reduced(log, step), reduced(log)) == (
        "1 gone from utils.py:7 in mean_of_ranks, called at train.py:31 in step, a line of the reference"
    )
    assert places(reduced(log), reduced(replace(log, value=4.0))) == "all at utils.py:7 in mean_of_ranks"
    assert places(reduced(log, step), reduced(log, replace(step, value=4.0))) == (
        "1 -> 4 at utils.py:7 in mean_of_ranks, called at train.py:31 in step"
    )
    of_baseline = site(7, "mean_of_ranks", file="utils.py")
    assert places(reduced(of_baseline), reduced(log, step)) == "all at utils.py:7 in mean_of_ranks"


def test_backward_and_strategies_are_named_with_their_lines() -> None:
    ours, new = "pytest_ddpperf/strategies/naive.py", reduced(site(41))
    more = site(38, "synchronise", 6.0, ours, strategy="naive")
    assert places(new, reduced(site(41), more)) == f"6 new ones at strategy naive, {ours}:38 in synchronise"
    assert places(new, reduced(site(44), site(41, "g", backward=True))) == (
        "the new one at train.py:41 in g, under backward"
    )
    assert places(reduced(site(41), site(50, "g")), new) == "1 gone from train.py:50 in g, a line of the reference"
    torchs = site(0, "", 1.0, "", strategy="ddp", backward=True)
    assert places(reduced(torchs), reduced(replace(torchs, value=3.0))) == "all at strategy ddp, under backward"


def test_bytes_have_lines_unless_more_calls_say_them() -> None:
    def moved(calls: float, nbytes: float) -> Counts:
        details = {"collective_calls": {"all_reduce": calls}, "collective_bytes": {"all_reduce": nbytes}}
        return replace(counts(details), sites={"collective_bytes": (site(41, value=nbytes),)})

    assert difference_text("collective_bytes", moved(1.0, 4.0), moved(1.0, 8.0)) == [
        "all_reduce 4 B -> 8 B per step (+4 B, +100 %), calls unchanged: all at train.py:41 in step"
    ]
    assert difference_text("collective_bytes", moved(1.0, 4.0), moved(2.0, 8.0)) == [
        "all_reduce 4 B -> 8 B per step (+4 B, +100 %)"
    ]
    assert difference_text("collective_bytes", moved(2.0, 4.0), moved(1.0, 8.0)) == [
        "all_reduce 4 B -> 8 B per step (+4 B, +100 %): all at train.py:41 in step"
    ]


def test_python_objects_that_stay_have_the_lines_that_make_them() -> None:
    def objects(number: float, **blocks: float) -> Counts:
        made = {"part": "", "file": "a.py", "function": "", "backward": False}
        sites = tuple(CallSite(**made, line=int(line[1:]), source=line, value=n) for line, n in blocks.items())  # type: ignore[arg-type]
        return replace(counts({"python_objects": {"list": number}}), sites={"python_objects": sites})

    said = "list 16 -> 32 that stay per step (+16)"
    then, now = objects(16.0, L7=16.0, L9=4.0), objects(32.0, L7=16.0, L9=12.0, L11=12.0)
    assert difference_text("python_objects", then, now) == [said, "made at a.py:11 and a.py:9"]
    assert difference_text("python_objects", then, objects(32.0)) == [said]


@pytest.mark.parametrize("metric", LOADERS)
def test_a_count_of_loaders_names_their_fault(metric: str) -> None:
    then, now = (counts({metric: {"DataLoaders": number}}) for number in (0.0, 1.0))
    assert difference_text(metric, then, now) == [f"{LOADERS[metric]} 0 -> 1 (+1)"]
