"""What FSDP overlaps on accelerators."""

from __future__ import annotations

from pytest_ddpperf.planner.replay import replayed
from pytest_ddpperf.planner.simulate.streams import Sharded, of_fsdp, streamed
from pytest_ddpperf.records.predictions import Moment, Timeline, Transfer


def blocking(*parts: tuple[float, int]) -> list[Moment]:
    """Seconds of computing before each transfer, which is waited for at once."""
    return [
        moment
        for computed, transfer in parts
        for moment in (
            Moment(computed=computed, transfer=transfer, waits=False),
            Moment(computed=0.0, transfer=transfer, waits=True),
        )
    ]


def told(moments: tuple[Moment, ...]) -> str:
    """Such as ``0 w0 1 2+w1``: seconds of computing, if any, before handing over and waiting."""
    return " ".join(
        f"{f'{moment.computed:g}+' if moment.computed else ''}{'w' if moment.waits else ''}{moment.transfer}"
        for moment in moments
    )


def sharded(*kinds: str) -> list[Sharded]:
    """Transfers 0, 1, 2 ... by words: ``f`` gathers in forward, ``b`` gathers in backward, ``r`` reduces."""
    return [Sharded(transfer=i, gathers=kind != "r", forward=kind == "f") for i, kind in enumerate(kinds)]


FSDP, C10D = "torch.distributed.fsdp._made_up", "torch.distributed.distributed_c10d"
STEP = blocking((0, 0), (1, 1), (1, 2), (2, 3), (0, 4), (2, 5))  # two layers: f f b r b r
KINDS = sharded("f", "f", "b", "r", "b", "r")


def test_gathering_begins_while_the_layer_before_computes_and_reducing_lasts_while_the_next_one_does() -> None:
    assert told(streamed(STEP, KINDS)) == "0 w0 1 1+w1 2 1+w2 4 2+3 w4 2+w3 5 w5"


def test_a_step_hides_what_its_streams_overlap() -> None:
    transfers = tuple(Transfer(name="any", nbytes=1, ranks=2) for _ in STEP[::2])
    at_once, overlapped = (
        replayed(Timeline(transfers=transfers, moments=tuple(moments), rest=0.5), [0.5] * 6)
        for moments in (STEP, streamed(STEP, KINDS))
    )
    assert at_once.exposed == 3.0
    # The first gathering has nothing to hide behind; nor has the last reduction. Computing is the same.
    assert overlapped.exposed == 1.0
    assert overlapped.computing == at_once.computing == 6.5


def test_the_next_forward_gathers_after_the_optimizer() -> None:
    moments = blocking((0, 0), (1, 1), (1, 2), (3, 3))
    assert told(streamed(moments, sharded("f", "b", "r", "f"))) == "0 w0 1 1+w1 1+2 w2 3+3 w3"


def test_what_is_handed_over_early_enough_stays_where_it_is() -> None:
    moments = [
        Moment(computed=0, transfer=0, waits=False),
        Moment(computed=0, transfer=1, waits=False),
        Moment(computed=1, transfer=0, waits=True),
        Moment(computed=1, transfer=1, waits=True),
    ]
    assert streamed(moments, sharded("f", "f")) == tuple(moments)


def test_what_others_send_stays_where_it_is() -> None:
    assert streamed(STEP, []) == tuple(STEP)


def test_only_what_fsdp_calls_is_of_it() -> None:
    assert not of_fsdp()
    fsdp, c10d, model = ({"__name__": name, "of_fsdp": of_fsdp} for name in (FSDP, C10D, "model"))
    for module in (fsdp, c10d, model):
        exec("def call(inner=of_fsdp): return inner()", module)  # noqa: S102  as a module of that name
    assert fsdp["call"]()  # type: ignore[operator]
    assert fsdp["call"](c10d["call"])  # type: ignore[operator]
    assert not fsdp["call"](model["call"])  # type: ignore[operator]  # of a model that it wraps
