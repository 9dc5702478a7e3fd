"""Predicts communication, memory and step time of a training, by published formulas and with simulated ranks.

Functions raise SettingError for impossible arguments.
"""

from __future__ import annotations

from pytest_ddpperf.analysis.scaling import ScalingPoint as ScalingPoint
from pytest_ddpperf.analysis.scaling import amdahl as amdahl
from pytest_ddpperf.analysis.scaling import fit_law as fit_law
from pytest_ddpperf.analysis.scaling import gustafson as gustafson
from pytest_ddpperf.analysis.scaling import serial_fraction as serial_fraction
from pytest_ddpperf.analysis.scaling import status as status
from pytest_ddpperf.analysis.scaling import stops_paying as stops_paying
from pytest_ddpperf.planner.costs import Network as Network
from pytest_ddpperf.planner.costs import algorithm_bandwidth as algorithm_bandwidth
from pytest_ddpperf.planner.costs import bus_bandwidth as bus_bandwidth
from pytest_ddpperf.planner.costs import collective_time as collective_time
from pytest_ddpperf.planner.costs import communication_complexity_analysis as communication_complexity_analysis
from pytest_ddpperf.planner.costs import estimate_communication_time as estimate_communication_time
from pytest_ddpperf.planner.costs import hierarchical_time as hierarchical_time
from pytest_ddpperf.planner.hardware import ACCELERATORS as ACCELERATORS
from pytest_ddpperf.planner.hardware import CLUSTERS as CLUSTERS
from pytest_ddpperf.planner.hardware import HARDWARE as HARDWARE
from pytest_ddpperf.planner.volumes import GradientBucket as GradientBucket
from pytest_ddpperf.planner.volumes import bucket_layout as bucket_layout
from pytest_ddpperf.planner.volumes import estimate_ddp_comm_cost as estimate_ddp_comm_cost
from pytest_ddpperf.planner.volumes import estimate_fsdp_comm_cost as estimate_fsdp_comm_cost
from pytest_ddpperf.planner.volumes import model_state_bytes as model_state_bytes
