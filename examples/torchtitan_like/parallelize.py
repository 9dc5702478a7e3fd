"""The parallelise function: tensor parallelism inside the layers, then FSDP2 around them, as the mesh says."""

from __future__ import annotations

from model import Transformer
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

LAYER_PLAN = {
    "attention.wq": ColwiseParallel(),
    "attention.wk": ColwiseParallel(),
    "attention.wv": ColwiseParallel(),
    "attention.wo": RowwiseParallel(),
    "feed_forward.w1": ColwiseParallel(),
    "feed_forward.w2": RowwiseParallel(),
    "feed_forward.w3": ColwiseParallel(),
}


def parallelize_llama(model: Transformer, mesh: DeviceMesh) -> Transformer:
    """Makes the model ready to be trained by the ranks of the mesh, in place.

    Args:
        model: the whole model, with the same weights on every rank.
        mesh: its dimensions are ``dp`` (ranks that share out samples) and ``tp`` (ranks that share out layers).
    """
    if mesh["tp"].size() > 1:
        for layer in model.layers.values():
            parallelize_module(layer, mesh["tp"], LAYER_PLAN)
    if mesh["dp"].size() > 1:
        for layer in model.layers.values():
            fully_shard(layer, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    return model
