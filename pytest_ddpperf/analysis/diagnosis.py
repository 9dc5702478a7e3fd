"""The diagnosis of a step: it divides the step's time among causes, and the largest cause is the bottleneck.

Waits are measured: for data, for exposed communication, for a slow rank. Time that nothing explains is ``unclear``. The
rest is computing. It is divided among causes by the machine's speeds in micro-benchmarks (``MachineRates``), as in the
roofline model (Williams, Waterman and Patterson, 2009): FLOPs divided by the rate of matrix products, bytes divided by
the rate of copies, and operators times the time of a small operator.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_ddpperf.analysis.advice import advice_on
from pytest_ddpperf.analysis.evidence import StepEvidence, evidence_of
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.metrics import communication, memory, phases
from pytest_ddpperf.records.finding import Bottleneck, Cause, Diagnosis
from pytest_ddpperf.records.measurement import Environment, Measurement
from pytest_ddpperf.records.results import StepAnalysis

_COMPUTING = frozenset({"compute", "memory_bandwidth", "overhead"})

LEAST_SHARE = 1 / 3  # of the step: a smaller cause is no bottleneck
CAPACITY = 0.90  # share of its memory above which a rank has no room for more
DISTURBED = 0.15  # share of the cores' time above which other processes disturb the ranks
SATURATED = 0.70  # share of the cores' time in use above which ranks waited for cores
SCALED = 2.0  # times the micro-benchmarks' time on a CPU; if collectives were not timed, computing beyond it is unclear
SENDING = 3e-4  # seconds of a core that a collective takes at most, besides its bytes
PASSES = 10  # over the bytes of a collective at most, each as fast as a copy
SLOWER = 3.0  # times the micro-benchmarks' time that products and copies take at most; 2.6 in benchmarks/diagnosed
SLOWER_CALLS = 5.0  # the same of small operators, with Python around them: 0.6 to 4.9 there
SLOW_RANK = 0.05  # of a step: below, the ranks are alike
SCATTER = 0.10  # of a step: a rank that alone takes longer than the group's step by more than this was disturbed
IDLE = 0.10  # of a step: below, a rank was busy


def diagnosis_of(measurement: Measurement) -> Diagnosis | None:
    """Returns the diagnosis of a measured benchmark; None if no launch timed steps, or none measured phases.

    Raises:
        SettingError: the argument is no measurement.
    """
    if not isinstance(measurement, Measurement):
        raise SettingError(f"measurement={measurement!r} is not a Measurement; ddpperf.measure(...) returns one")
    evidence = evidence_of(measurement)
    if evidence is None:
        return None
    diagnosis = diagnosed(evidence, measurement.environment)
    return replace(diagnosis, advice=advice_on(diagnosis, measurement))


def analysis_of(measurement: Measurement) -> StepAnalysis:
    """Returns the analysis of a benchmark's step: its diagnosis, sections, memory and synchronisation."""
    return StepAnalysis(
        diagnosis=diagnosis_of(measurement),
        sections=phases.sections_of(measurement),
        memory_by_rank=memory.memory_by_rank(measurement),
        memory_by_phase=phases.memory_of_phases(measurement),
        still_sent=communication.still_sent(measurement),
        synchronised_step=communication.synchronised_step(measurement),
    )


def diagnosed(evidence: StepEvidence, environment: Environment) -> Diagnosis:
    """Returns the diagnosis that follows from the evidence, without advice."""
    step, slow = evidence.step, evidence.slow
    sent: dict[str, Any] = {"collectives": evidence.collectives, "sent": evidence.sent} if evidence.collectives else {}
    waits = [_cause("data", evidence.data, step), _cause("communication", evidence.communication, step, **sent)]
    if slow is not None and slow.own <= (1 + SCATTER) * step and slow.own - slow.others >= SLOW_RANK * step:
        told = {"rank": slow.rank, "own": slow.own, "others": slow.others, "phase": slow.phase}
        waits.append(_cause("straggler", slow.own - slow.others, step, **told))
    computing = max(0.0, step - sum(cause.seconds for cause in waits))
    queued = _queued(evidence, environment, computing)
    causes = [*waits, *queued, *_computing(evidence, environment, computing - sum(cause.seconds for cause in queued))]
    longer = max(1.0, sum(cause.share for cause in causes))  # waits were measured in other steps, maybe longer ones
    scaled = [replace(cause, seconds=cause.seconds / longer, share=cause.share / longer) for cause in causes]
    found = (cause for cause in scaled if round(cause.share, 9) > 0)
    largest_first = tuple(sorted(found, key=lambda cause: -cause.share))
    bottleneck = _bottleneck(largest_first, evidence, environment)
    return Diagnosis(bottleneck=bottleneck, step=step, causes=largest_first, memory=evidence.memory, lost=evidence.lost)


def _bottleneck(largest_first: tuple[Cause, ...], evidence: StepEvidence, environment: Environment) -> Bottleneck:
    """Returns the largest cause as bottleneck, unless shared devices, other processes or full memory limit steps."""
    first = largest_first[0] if largest_first else None
    if first is None or first.share < LEAST_SHARE:
        return "disturbed" if evidence.lost >= LEAST_SHARE else "unclear"
    if first.bottleneck != "data" and _shortage(evidence, environment) >= LEAST_SHARE:
        return "oversubscribed"
    full = evidence.memory is not None and evidence.memory >= CAPACITY
    return "memory_capacity" if full and first.bottleneck in _COMPUTING else first.bottleneck


def _cause(bottleneck: Bottleneck, seconds: float, step: float, **facts: Any) -> Cause:
    return Cause(bottleneck=bottleneck, seconds=seconds, share=seconds / step if step > 0 else 0.0, facts=facts)


def _queued(evidence: StepEvidence, environment: Environment, without_waits: float) -> list[Cause]:
    """Returns the causes of time in which a rank neither computes nor waits, such as cores that several ranks share."""
    step, short = evidence.step, _shortage(evidence, environment)
    idle = 0.0 if evidence.cpu is None else without_waits - evidence.cpu
    if short:
        wanted, there = _threads(environment)
        facts = {"wanted": wanted, "there": there, "resource": "core" if environment.device == "cpu" else "GPU"}
        return [_cause("oversubscribed", idle if idle >= IDLE * step else short * without_waits, step, **facts)]
    if idle < IDLE * step:
        return []
    if evidence.lost >= DISTURBED and _saturation(evidence, environment) >= SATURATED:
        taken = min(idle, evidence.lost * step)
        return [_cause("disturbed", taken, step, lost=evidence.lost), _unclear(evidence, idle - taken)]
    return [_unclear(evidence, idle)]


def _computing(evidence: StepEvidence, environment: Environment, busy: float) -> list[Cause]:
    """Divides ``busy`` seconds of computing among matrix products, memory traffic and operator calls."""
    rates, step = evidence.rates, evidence.step
    if rates is None or not evidence.operators:
        return [_cause("unclear", busy, step)]
    # Seconds that the same number of FLOPs, bytes and calls takes in the micro-benchmarks.
    products, moving = evidence.flops / rates.products, evidence.moved / rates.copies
    calling = evidence.operators * rates.operator
    on_cuda = environment.device == "cuda"
    if on_cuda:  # the host calls while the device works: the longer one is the limit
        products, moving, calling = (0.0, 0.0, calling) if calling > products + moving else (products, moving, 0.0)
    known = products + moving + calling
    sending = evidence.collectives * SENDING + PASSES * evidence.sent / rates.copies
    hidden = evidence.unmeasured and (on_cuda or sending >= IDLE * busy)  # whether busy seconds may be of collectives
    share = busy / known if known > 0 else 0.0
    if hidden and share > (1.0 if on_cuda else SCALED):
        share = 1.0
    causes = [
        _cause("compute", min(share, SLOWER) * products, step, flops=evidence.flops, rate=rates.products),
        _cause("memory_bandwidth", min(share, SLOWER) * moving, step, moved=evidence.moved, rate=rates.copies),
        _cause("overhead", min(share, SLOWER_CALLS) * calling, step, operators=evidence.operators, each=rates.operator),
    ]
    rest = busy - sum(cause.seconds for cause in causes)  # such as work in Python or NumPy
    return [*causes, _cause("unclear", rest, step, collectives=evidence.collectives * hidden)]


def _unclear(evidence: StepEvidence, seconds: float) -> Cause:
    """Returns unexplained time as a cause, which names its likely origin: outside of phases, or untimed collectives."""
    outside = {"outside": evidence.outside}
    told = outside if 2 * evidence.outside >= seconds else {"collectives": evidence.collectives * evidence.unmeasured}
    return _cause("unclear", seconds, evidence.step, idle=seconds, **told)


def _threads(environment: Environment) -> tuple[int, int]:
    """Returns how many threads all ranks have and how many cores there are; with GPUs, how many ranks and GPUs."""
    if environment.device == "cpu":
        return environment.world_size * environment.threads, environment.cores * environment.nodes
    return environment.world_size, environment.device_count * environment.nodes


def _shortage(evidence: StepEvidence, environment: Environment) -> float:
    """Returns the fraction of time in which a rank waits for a core or GPU that it shares; 0 if it shares none."""
    wanted, there = _threads(environment)
    short = wanted > there and (environment.device != "cpu" or _saturation(evidence, environment) >= SATURATED)
    return 1 - there / wanted if short else 0.0


def _saturation(evidence: StepEvidence, environment: Environment) -> float:
    """Returns the fraction of the cores' time that ranks and other processes take together."""
    if evidence.cpu is None or not evidence.step:
        return 0.0
    here = environment.world_size / environment.nodes
    return evidence.cpu * here / (evidence.step * environment.cores) + evidence.lost
