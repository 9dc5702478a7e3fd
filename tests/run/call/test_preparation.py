"""What is asked of preparing launches, what comes of them, and what is not asked twice; no rank is started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.errors import (
    DdpperfError,
    IncorrectTraining,
    LaunchError,
    PayloadError,
    RankFailed,
    RankSkipped,
    RanksTimedOut,
    ReferenceFailed,
    WorkloadError,
)
from pytest_ddpperf.launch.launch_run import LaunchResult
from pytest_ddpperf.launch.messages import Call
from pytest_ddpperf.launch.payload import dump_call
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.records.ranks import merged
from pytest_ddpperf.run.call.preparation import Prepared, identity, prepare_job, prepared, task_text
from pytest_ddpperf.run.call.variants import Variant
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.jobs import PrepareJob, RankPrepared
from pytest_ddpperf.training.preparing import prepare_launch
from pytest_ddpperf.training.subject import Script, Workload
from pytest_ddpperf.training.verification import Discrepancy, Leniency, Verification
from tests.factories import make_counts, make_environment, make_rank_launch, make_variant

ENVIRONMENT = make_environment()
COUNTS = merged([make_counts({}, flops=1.0)])
WRONG = Verification(
    discrepancy=Discrepancy(quantity="gradients", name="weight", rank=1, step=1, error=0.5, tolerance=1e-3)
)
ALONE = "alone"  # a launch that has only to verify


def workload(scale: float = 1.0) -> Workload:
    made: Any = lambda *_: scale  # noqa: E731  a function that is made anew each time
    return Workload(model=made, batch=made, loss=made, optimizer=made, samples_per_step=1)


def training(name: str = "ddp", *, of_reference: bool = False, subject: Any = None, **changes: Any) -> Variant:
    made = workload() if subject is None else subject
    strategy = resolve("ddp") if isinstance(made, Workload) else None
    return replace(
        make_variant(name, subject=made, strategy=strategy, environment=ENVIRONMENT, of_reference=of_reference),
        **changes,
    )


class Ranks:
    """Two ranks of any launch, and what was asked of them.

    Attributes:
        asked: for each launch the variant's name and side, and what it was for.
    """

    def __init__(self, **outcomes: Verification | Callable[[], DdpperfError]) -> None:
        self.asked: list[str] = []
        self.jobs: list[PrepareJob] = []
        self.picked: tuple[str, str] | None = None
        self._outcomes = outcomes

    def __call__(self, variant: Variant, job: PrepareJob) -> LaunchResult[RankPrepared]:
        what = [name for name, asked in (("timed", job.timed), ("counted", job.counted)) if asked]
        tasks = " ".join([*what, *(["verified"] if job.verified else [])])
        self.asked.append(f"{variant.name}{', other' * variant.of_reference}: {tasks}")
        self.jobs.append(job)
        outcome = self._outcomes.get(ALONE if tasks == "verified" else variant.name, Verification())
        if callable(outcome):
            raise outcome()
        values = tuple(self._found(rank, job, outcome) for rank in (0, 1))
        return LaunchResult(values, (), 5.0)

    def _found(self, rank: int, job: PrepareJob, verification: Verification) -> RankPrepared:
        picked = self.picked if rank == 0 and (loader := job.training.settings.loader) and loader.auto else None
        times = (0.1,) * job.training.plan.steps
        timed = make_rank_launch(
            rank=rank,
            step_times=times,
            loss=1.0,
            samples_per_step=1.0,
            background=rank == 1,
            taken=100 + rank,
            picked=picked,
        )
        return RankPrepared(
            timed=timed if job.timed else None,
            counts=COUNTS if job.counted else None,
            verification=verification if job.verified else None,
            counting=0.5,
            verifying=0.5 + rank,
        )


@pytest.mark.parametrize(
    ("settings", "variant", "tasks"),
    [
        (Settings(), training(), "timing a few steps, counting, comparing with a single process"),
        (Settings(), training(of_reference=True), "timing a few steps, counting"),
        (Settings(), training(subject=lambda ctx: None), "timing a few steps, counting"),
        (Settings(verify=False), training(), "timing a few steps, counting"),
        (Settings(counts="only"), training(), "counting, comparing with a single process"),
        (Settings(counts="only", verify=False), training(), "counting"),
        (Settings(counts="off", verify=False), training(), "timing a few steps"),
    ],
)
def test_a_launch_has_all_that_is_wanted_to_do(settings: Settings, variant: Variant, tasks: str) -> None:
    assert task_text(prepare_job(settings, variant)) == tasks


@pytest.mark.parametrize(("counts", "expected"), [("only", (60, 600.0)), ("on", (None, Settings().timeout))])
def test_steps_are_those_that_are_counted_if_nothing_is_timed(counts: str, expected: tuple[int | None, float]) -> None:
    given = prepare_job(Settings(counts=counts, steps=60, timeout=600.0), training()).training.settings
    assert (given.steps, given.timeout) == expected


def test_ranks_are_given_the_settings_that_make_a_training() -> None:
    settings = Settings(precision="bf16", warmup=3, steps=2, tolerance=0.5, max_time=7.0)
    job = prepare_job(settings, training(samples_per_step=7.0))
    assert job.verified is not None
    given = job.training.settings
    assert (given.precision, given.warmup, given.tolerance, given.max_time) == ("bf16", 3, None, 60.0)
    assert job.verified.settings is given
    assert (job.training.plan, job.training.samples_per_step) == (Plan(warmup=3, steps=2), 7.0)


def test_one_launch_prepares_all_facts_of_a_variant() -> None:
    """It lasts 5 s: half a second of that are timed steps, and 2 s what no timed launch does."""
    ranks = Ranks(ddp=Verification(leniency=Leniency(precision=None, exact_steps=2)))
    (found,) = prepared(Settings(), [training(findings=(Finding("a_remark"),))], ranks, {})
    assert ranks.asked == ["ddp: timed counted verified"]
    assert found.counts == COUNTS
    assert found.findings == (
        Finding("a_remark"),
        Finding("lenient_verification", {"precision": None, "exact_steps": 2}),
    )
    assert found.pilot is not None
    assert (found.pilot.step, found.pilot.fixed) == pytest.approx((0.1, 2.5))
    assert (found.pilot.background, found.pilot.nbytes, found.pilot.picked) == (True, 201, None)


def test_facts_that_are_not_asked_for_are_not_prepared() -> None:
    (found,) = prepared(Settings(counts="only"), [training()], Ranks(), {})
    assert (found.pilot, found.counts, found.findings) == (None, COUNTS, ())
    (found,) = prepared(Settings(counts="off", verify=False), [training()], Ranks(), {})
    assert found.pilot is not None
    assert (found.counts, found.findings) == (None, ())


@pytest.mark.parametrize(("calls", "ranks", "told"), [(0.0, 2, True), (1.0, 2, False), (0.0, 1, False)])
def test_a_script_whose_ranks_send_nothing_trains_alone(calls: float, ranks: int, *, told: bool) -> None:
    counts = merged([make_counts({}, collective_calls=calls)])
    script = replace(training(subject=Script("train.py")), environment=make_environment(world_size=ranks))
    found = Prepared(counts=counts).given_to(script)
    assert found.findings == ((Finding("ranks_send_nothing", {"ranks": 2}),) if told else ())


SAME = training()


@pytest.mark.parametrize(
    ("settings", "again", "launches"),
    [
        pytest.param(Settings(), SAME, 1, id="the same"),
        pytest.param(Settings(), training("named"), 1, id="made anew, and called otherwise"),
        pytest.param(Settings(max_time=9, tolerance=0.1, launches=3, timeout=9.0), SAME, 1, id="judged otherwise"),
        pytest.param(Settings(precision="bf16"), SAME, 2, id="another setting"),
        pytest.param(Settings(warmup=6), SAME, 2, id="another warm-up"),
        pytest.param(Settings(steps=3), SAME, 2, id="another number of steps"),
        pytest.param(Settings(verify=False), SAME, 2, id="less is asked"),
        pytest.param(Settings(), training(subject=workload(2.0)), 2, id="another training"),
        pytest.param(Settings(), training(resolved=resolve("naive")), 2, id="another strategy"),
        pytest.param(Settings(), training(environment=replace(ENVIRONMENT, world_size=4)), 2, id="more ranks"),
        pytest.param(Settings(), training(mode="strong"), 2, id="another mode"),
        pytest.param(Settings(), training(of_reference=True), 2, id="the other side"),
    ],
)
def test_known_facts_are_not_prepared_again(settings: Settings, again: Variant, launches: int) -> None:
    ranks = Ranks()
    known: dict[bytes, Prepared] = {}
    (first,) = prepared(Settings(), [SAME], ranks, known)
    (second,) = prepared(settings, [again], ranks, known)
    assert len(ranks.asked) == launches
    assert (second.name, second.counts) == (again.name, first.counts)


@pytest.mark.parametrize(("name", "same"), [("SOME_SWITCH", False), ("PYTEST_CURRENT_TEST", True)])
def test_the_environment_of_ranks_is_part_of_their_identity(
    monkeypatch: pytest.MonkeyPatch, name: str, *, same: bool
) -> None:
    job = prepare_job(Settings(), SAME)
    monkeypatch.setenv(name, "1")
    before = identity(job, SAME)
    monkeypatch.setenv(name, "2")
    assert (identity(job, SAME) == before) is same


def test_the_working_directory_is_part_of_the_identity_and_reported_if_it_was_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = prepare_job(Settings(), SAME)
    before = identity(job, SAME)
    monkeypatch.chdir(tmp_path)
    assert identity(job, SAME) != before
    tmp_path.rmdir()
    with pytest.raises(LaunchError, match=r"^the current folder was removed; run pytest in a folder that exists$"):
        identity(job, SAME)


def test_an_object_that_cannot_be_sent_is_named_as_by_a_launch() -> None:
    handle = (number for number in range(3))
    variant = training(subject=lambda ctx: lambda: next(handle))
    job = prepare_job(Settings(), variant)
    with pytest.raises(PayloadError) as launched:
        dump_call(Call(prepare_launch, (job,)))
    with pytest.raises(PayloadError) as asked:
        prepared(Settings(), [variant], Ranks(), {})
    assert str(asked.value) == str(launched.value)
    assert "closure variable 'handle'" in str(asked.value)


def test_all_incorrect_variants_are_named_and_not_kept() -> None:
    """The other side is not asked any more; what is right is kept."""
    ranks = Ranks(bad=WRONG, worse=WRONG, alone=WRONG)
    known: dict[bytes, Prepared] = {}
    subjects = {name: workload(number) for number, name in enumerate(("bad", "fine", "worse"))}
    variants = [training(name, subject=subject) for name, subject in subjects.items()]
    with pytest.raises(IncorrectTraining) as raised:
        prepared(Settings(), [*variants, *(replace(one, of_reference=True) for one in variants)], ranks, known)
    assert ranks.asked == [
        "bad: timed counted verified",
        "bad: verified",
        "fine: timed counted verified",
        "worse: timed counted verified",
        "worse: verified",
    ]
    assert list(raised.value.wrong) == [("bad", 2), ("worse", 2)]
    assert str(raised.value).splitlines() == [
        f"broken: {raised.value.wrong['bad', 2]}",
        "  benchmark bad, 2 ranks, gloo",
        f"broken: {raised.value.wrong['worse', 2]}",
        "  benchmark worse, 2 ranks, gloo",
    ]
    assert len(known) == 1


def test_an_incorrect_variant_is_reported_rather_than_a_later_failure() -> None:
    """A variant that trains something else is the worse fault, and is named though the next one does not run."""
    failure = RankFailed("rank 0 cannot build it")

    class Failing(Ranks):
        def __call__(self, variant: Variant, job: PrepareJob) -> LaunchResult[RankPrepared]:
            found = super().__call__(variant, job)
            if variant.name == "broken":
                raise failure
            return found

    ranks = Failing(bad=WRONG, alone=WRONG)
    variants = [training(name, subject=workload(number)) for number, name in enumerate(("bad", "broken", "next"))]
    with pytest.raises(IncorrectTraining) as raised:
        prepared(Settings(), variants, ranks, {})
    assert [asked.partition(":")[0] for asked in ranks.asked] == ["bad", "bad", "broken", "broken"]
    assert list(raised.value.wrong) == [("bad", 2)]
    assert raised.value.__cause__ is failure
    with pytest.raises(RankFailed):
        prepared(Settings(), variants[1:], ranks, {})


@pytest.mark.parametrize("shared", [WRONG, Verification(unverified="it does not fit")])
def test_a_verification_that_does_not_pass_in_a_shared_launch_is_repeated_alone(shared: Verification) -> None:
    ranks = Ranks(ddp=shared)
    (found,) = prepared(Settings(), [training()], ranks, {})
    assert ranks.asked == ["ddp: timed counted verified", "ddp: verified"]
    assert (found.counts, found.findings) == (COUNTS, ())


@pytest.mark.parametrize("verification", [WRONG, Verification(unverified="it communicates")])
def test_a_verification_in_a_separate_launch_is_final(verification: Verification) -> None:
    settings = Settings(counts="only")
    assert prepare_job(settings, training()).parts == 2
    ranks = Ranks(ddp=verification, alone=verification)
    if verification.discrepancy is None:
        (found,) = prepared(settings, [training()], ranks, {})
        assert found.findings == (Finding("unverified", {"reason": "it communicates"}),)
    else:
        with pytest.raises(IncorrectTraining):
            prepared(settings, [training()], ranks, {})
    assert ranks.asked == ["ddp: counted verified", "ddp: verified"]


def test_a_launch_that_fails_is_verified_alone_and_incorrect_training_is_the_worse_fault() -> None:
    failure = partial(WorkloadError, "loss is nan")
    with pytest.raises(IncorrectTraining):
        prepared(Settings(), [training()], Ranks(ddp=failure, alone=WRONG), {})
    ranks, known = Ranks(ddp=failure), dict[bytes, Prepared]()
    with pytest.raises(WorkloadError, match="loss is nan"):
        prepared(Settings(), [training()], ranks, known)
    assert ranks.asked[1:] == ["ddp: verified"]
    assert known == {}
    with pytest.raises(RankFailed, match="rank 0 cannot build it"):
        prepared(Settings(), [training()], Ranks(ddp=failure, alone=partial(RankFailed, "rank 0 cannot build it")), {})
    with pytest.raises(WorkloadError, match="loss is nan"):  # whose rank removed the folder of temporary files
        prepared(Settings(), [training()], Ranks(ddp=failure, alone=partial(LaunchError, "cannot be stored")), {})


@pytest.mark.parametrize(
    ("failure", "variant"),
    [
        pytest.param(partial(RanksTimedOut, "late"), training(), id="late"),
        pytest.param(partial(RankSkipped, "no bf16"), training(), id="skipped"),
        pytest.param(partial(LaunchError, "no torch"), training(), id="no ranks"),
        pytest.param(
            partial(ReferenceFailed, "rank 0 raised", benchmark=("ddp", 2)),
            training(of_reference=True),
            id="other side",
        ),
        pytest.param(partial(RankFailed, "rank 0 raised"), training(subject=lambda ctx: None), id="own step"),
    ],
)
def test_some_failures_need_no_second_launch(failure: Callable[[], DdpperfError], variant: Variant) -> None:
    ranks = Ranks(ddp=failure)
    with pytest.raises(type(failure())):
        prepared(Settings(), [variant], ranks, {})
    assert len(ranks.asked) == 1


def test_all_variants_use_the_loader_settings_picked_for_the_first() -> None:
    """But for verification, which has a loading of its own; and the first one, when it is asked again."""
    settings = replace(Settings(), loader=Settings.__dataclass_fields__["loader"].metadata["parse"]("auto"))
    ranks = Ranks()
    ranks.picked = ("workers=2", "2 workers were fastest")
    known: dict[bytes, Prepared] = {}
    variants = [training("first"), training("second", subject=workload(2.0))]
    for _ in range(2):
        first, second = prepared(settings, variants, ranks, known)
        assert first.pilot is not None
        assert second.pilot is not None
        assert (first.pilot.picked, second.pilot.picked) == (ranks.picked, None)
    jobs = [job for job in ranks.jobs if job.verified is not None]
    assert [str(job.training.settings.loader) for job in jobs] == ["auto", "workers=2"]
    assert [str(job.verified.settings.loader) for job in jobs if job.verified] == ["auto", "auto"]


@pytest.mark.parametrize(
    ("settings", "launched"),
    [
        (Settings(verify=False), ["mine: counted"]),
        (Settings(verify=False, counts="only"), ["mine: counted"]),
        (Settings(verify=False, counts="off"), []),  # a user who turns counts off has none
    ],
)
def test_without_timed_launches_no_pilot_runs_and_a_commit_with_stored_counts_is_not_launched(
    settings: Settings, launched: list[str]
) -> None:
    ranks, stored = Ranks(), replace(COUNTS, totals={"flops": 2.0})
    commit = training("mine", of_reference=True, own={"counts": "off"}, counts=stored)
    mine, reference = prepared(settings, [training("mine"), commit], ranks, {}, timed=False)
    assert ranks.asked == launched
    assert (mine.pilot, reference.pilot, reference.counts) == (None, None, stored)
