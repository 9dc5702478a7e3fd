"""The measured network between ranks as a table, and sentences on its speed and on causes of slowness."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.planner.links import HARDWARE, REACHED, LateRank, SlowLink, WrongInterface
from pytest_ddpperf.planner.network import largest_bandwidths
from pytest_ddpperf.records.measurement import Environment
from pytest_ddpperf.records.network import CollectiveFit
from pytest_ddpperf.reports.phrases import environment_text
from pytest_ddpperf.reports.table import Table, table_of
from pytest_ddpperf.units import format_count, format_percent, format_value, significant

_GB = 1e9  # bytes, as nccl-tests has it
_LEGEND = {
    "latency": "time of a small call of any size; all times are from the fastest call, on its slowest rank",
    "algbw": "largest size divided by its time, as in nccl-tests",
    "busbw": "the load that this puts on the links, as in nccl-tests",
    "lines": "how many lines fit it: of two, one is for small messages",
    "error": "the median relative error at sizes that the fit did not use",
}


def network_table(environment: Environment, fits: Sequence[CollectiveFit]) -> Table:
    """Returns a table with a row for each collective: range of sizes, latency, bandwidths, and error of the fit."""
    return table_of(
        fits,
        {
            "collective": lambda fit: fit.collective,
            "sizes": lambda fit: " to ".join(format_value(end, "B") for end in (fit.min_bytes, fit.max_bytes)),
            "latency": lambda fit: format_value(fit.segments[0].latency, "s"),
            "algbw\nGB/s": lambda fit: significant(largest_bandwidths(fit)[0] / _GB),
            "busbw\nGB/s": lambda fit: significant(largest_bandwidths(fit)[1] / _GB),
            "lines": lambda fit: str(len(fit.segments)),
            "error\n%": lambda fit: format_percent(fit.error).removesuffix(" %"),
        },
        title=f"{environment_text(environment)}, {format_count(environment.world_size, 'rank')}",
        right=0,
        legend=_LEGEND,
    )


def prediction_lines(fits: Sequence[CollectiveFit], nbytes: int) -> list[str]:
    """Returns a line with the time of each collective for ``nbytes``; SettingError beyond the measured sizes."""
    return [
        f"{fit.collective} of {format_value(nbytes, 'B')}: {format_value(fit.seconds(nbytes), 's')}, "
        f"median error {format_percent(fit.error)}"
        for fit in fits
    ]


def late_line(late: LateRank) -> str:
    """Returns the sentence about a rank that others wait for."""
    return (
        f"rank {late.rank} is slow: it comes last to {format_percent(late.calls)} of the calls of {late.collective}; "
        f"the others wait {format_percent(late.waited)} of their time: look at its node, its cores and its GPU"
    )


def link_line(link: SlowLink) -> str:
    """Returns the sentence about a slow link, or about a rank whose links are all slow."""
    whose = "every link of rank" if len(link.ranks) == 1 else "the link of ranks"
    ranks = " and ".join(map(str, link.ranks))
    return f"{whose} {ranks} is slow: a message takes {link.times:.1f} times the usual link's time; look at its cable"


def interface_line(wrong: WrongInterface) -> str:
    """Returns the sentence about an environment variable that names a wrong network interface."""
    named = f"{wrong.variable}={wrong.interface}"
    if wrong.speed is None:
        return f"{named} names no interface that is up; name one that ip -brief link shows, or unset it"
    own, other = (f"{speed / _GB:g} Gbit/s" for speed in (wrong.speed, wrong.faster_speed))
    return f"{named} is an interface of {own}, and {wrong.faster} has {other}; name that one"


def backend_line(environment: Environment, gpus: int) -> str:
    """Returns a sentence if ranks use gloo although there are GPUs; else empty."""
    if environment.backend != "gloo" or not gpus:
        return ""
    return f"gloo moves the data of {format_count(gpus, 'GPU')} through the host; give --backend nccl --device cuda"


def reach_line(fit: CollectiveFit, link: str) -> str:
    """Returns a sentence if the bandwidth of a collective is far below the link's; else empty."""
    hardware, (_, busbw) = HARDWARE[link], largest_bandwidths(fit)
    share = busbw / hardware.bandwidth
    if share >= REACHED:
        return ""
    return (
        f"{fit.collective} reaches a busbw of {significant(busbw / _GB)} GB/s, {format_percent(share)} of "
        f"the {hardware.bandwidth / _GB:g} GB/s of {link} ({hardware.source}); half of it or more is usual with large "
        "messages: give a larger --max-size, or look at the topology with nvidia-smi topo -m"
    )
