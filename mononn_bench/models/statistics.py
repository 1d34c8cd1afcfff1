"""Statistics of batch norms from data: what training would have left in a network with these weights.

Import this file only where torch is installed.
"""

from __future__ import annotations

import torch
from torch import nn

from mononn_bench.models.inputs import make_inputs
from mononn_bench.models.weights import STATISTICS_SEED
from mononn_bench.models.zoo import ModelSpec, get_model

IMAGES = 8
"""Seeded inputs behind the statistics: enough that other inputs find much the same (with 4, variances late in a
MobileNet are a third larger on other inputs)."""


def set_batch_statistics(module: nn.Module, spec: ModelSpec) -> None:
    """Give every batch norm the mean and variance its input has over IMAGES inputs, all norms before it applied.

    Computed in double precision, so that the stored float32 numbers do not depend on a machine's order of summation.
    """
    norms = [part for part in module.modules() if isinstance(part, nn.BatchNorm2d | nn.BatchNorm3d)]
    if not norms:
        return
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    inputs = get_model(spec.name).inputs  # of a batch of 1, so that the weights are those of every batch
    sets = make_inputs(inputs, sets=IMAGES, seed=STATISTICS_SEED)
    batch = [torch.cat([torch.from_numpy(s[i.name]) for s in sets]).double() for i in inputs]
    module.double()
    with torch.no_grad():
        module(*batch)
    module.float().eval()
