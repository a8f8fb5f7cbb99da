"""The declarations of espresso.h as ctypes types. tests/python/check_abi.py compares them with the header."""

from __future__ import annotations

import ctypes as c
from typing import Any, Dict, List, Tuple

ESPRESSO_VERSION = "0.1.0"
STATUS = {
    "ESP_OK": 0,
    "ESP_PENDING": 1,
    "ESP_E_ARG": -1,
    "ESP_E_NOMEM": -2,
    "ESP_E_UNSUPPORTED": -3,
    "ESP_E_TOO_SMALL": -4,
    "ESP_E_ABI": -5,
    "ESP_E_NOT_FOUND": -6,
    "ESP_E_DEVICE": -7,
    "ESP_E_COMM": -8,
    "ESP_E_CORRUPT": -9,
    "ESP_E_STATE": -10,
    "ESP_E_PEER": -11,
    "ESP_E_TIMEOUT": -12,
    "ESP_E_MISMATCH": -13,
    "ESP_E_CANCELED": -14,
}
ESP_OK, ESP_PENDING, ESP_E_STATE = 0, 1, -10
ESP_F32, ESP_F16, ESP_BF16, ESP_I32, ESP_F64, ESP_I64 = 1, 2, 3, 6, 7, 8
ESP_REDUCE_SUM, ESP_REDUCE_MAX, ESP_REDUCE_MIN = 1, 2, 3
ESP_CPU, ESP_CUDA = 1, 2
ESP_ALLOW_OVERRIDE, ESP_DISCARDABLE = 1, 2
ESP_OPTIMIZER_UNKNOWN, ESP_OPTIMIZER_SGD, ESP_OPTIMIZER_MOMENTUM, ESP_OPTIMIZER_ADAM = 0, 1, 2, 3
ESP_SUM, ESP_RAW, ESP_SHARD = 1, 2, 4
ESP_OUT_SET, ESP_OUT_SUM = 0, 1
ESP_LEVELS = 3
ESP_ON_CPU, ESP_ON_GPU = 0, 1
ESP_PLAN_OUTER, ESP_PLAN_COLLS, ESP_PLAN_LANES = 1, 8, 6

status_t = c.c_int32
allgather_fn = c.CFUNCTYPE(status_t, c.c_void_p, c.c_void_p, c.c_void_p, c.c_uint64)
io_fn = c.CFUNCTYPE(status_t, c.c_void_p, c.c_void_p, c.c_uint64)


class Device(c.Structure):
    _c_name_ = "esp_device"
    _fields_ = [("kind", c.c_uint32), ("ordinal", c.c_int32)]


class Stream(c.Structure):
    _c_name_ = "esp_stream"
    _fields_ = [("dev", Device), ("native", c.c_void_p)]


class Config(c.Structure):
    _c_name_ = "esp_config"
    _fields_ = [
        ("struct_size", c.c_uint32),
        ("flags", c.c_uint32),
        ("backend", c.c_char_p),
        ("codec", c.c_char_p),
        ("strategy", c.c_char_p),
        ("plugin_path", c.c_char_p),
        ("builtin", c.c_void_p),
        ("n_builtin", c.c_uint32),
        ("log_level", c.c_int32),
        ("rank", c.c_int32),
        ("size", c.c_int32),
        ("machine", c.c_int32),
        ("timeout_ms", c.c_uint32),
        ("oob_allgather", allgather_fn),
        ("oob_user", c.c_void_p),
        ("root", c.c_char_p),
        ("trace", c.c_char_p),
        ("cpu_workers", c.c_uint32),
        ("reserved0", c.c_uint32),
        ("seed", c.c_uint64),
        ("host", c.c_void_p),
        ("stats", c.c_char_p),
        ("workers", c.c_char_p),
        ("place", c.c_char_p),
        ("progress", c.c_char_p),
        ("min_compress_elements", c.c_uint64),
        ("optimizer", c.c_uint32),
        ("momentum", c.c_float),
    ]


class TensorDesc(c.Structure):
    _c_name_ = "esp_tensor_desc"
    _fields_ = [
        ("struct_size", c.c_uint32),
        ("dtype", c.c_uint32),
        ("name", c.c_char_p),
        ("count", c.c_uint64),
        ("rows", c.c_uint64),
        ("cols", c.c_uint64),
        ("device", Device),
        ("flags", c.c_uint32),
        ("reserved0", c.c_uint32),
        ("codec", c.c_char_p),
        ("option", c.c_char_p),
        ("gather", c.c_char_p),
    ]


class Stats(c.Structure):
    _c_name_ = "esp_stats"
    _fields_ = [
        ("struct_size", c.c_uint32),
        ("reserved0", c.c_uint32),
        ("steps", c.c_uint64),
        ("intra_bytes", c.c_uint64),
        ("inter_bytes", c.c_uint64),
        ("nonfinite", c.c_uint64),
        ("memory_bytes", c.c_uint64),
        ("compress_ns", c.c_uint64),
        ("decompress_ns", c.c_uint64),
        ("intra_ns", c.c_uint64),
        ("inter_ns", c.c_uint64),
        ("step_ns", c.c_uint64),
        ("backward_ns", c.c_uint64),
        ("exposed_communication_ns", c.c_uint64),
        ("exposed_compression_ns", c.c_uint64),
        ("level_bytes", c.c_uint64 * ESP_LEVELS),
        ("level_ns", c.c_uint64 * ESP_LEVELS),
        ("slots_bytes", c.c_uint64),
        ("feedback_bytes", c.c_uint64),
        ("backend_bytes", c.c_uint64),
    ]


class TensorStats(c.Structure):
    _c_name_ = "esp_tensor_stats"
    _fields_ = [
        ("struct_size", c.c_uint32),
        ("samples", c.c_uint32),
        ("error", c.c_double),
        ("feedback", c.c_double),
        ("pushes", c.c_uint64),
        ("zeros", c.c_uint64),
    ]


class CostPoint(c.Structure):
    _c_name_ = "esp_cost_point"
    _fields_ = [("size", c.c_double), ("ns", c.c_double)]


class CostCurve(c.Structure):
    _c_name_ = "esp_cost_curve"
    _fields_ = [("points", c.POINTER(CostPoint)), ("n", c.c_uint32), ("log_size", c.c_uint32)]


class PlanTensor(c.Structure):
    _c_name_ = "esp_plan_tensor"
    _fields_ = [
        ("name", c.c_char_p),
        ("elements", c.c_uint64),
        ("compute_ns", c.c_double),
        ("keep", c.c_char_p),
        ("shard", c.c_char_p),
        ("rows", c.c_uint64),
        ("cols", c.c_uint64),
    ]


class PlanModel(c.Structure):
    _c_name_ = "esp_plan_model"
    _fields_ = [
        ("struct_size", c.c_uint32),
        ("n_tensors", c.c_uint32),
        ("name", c.c_char_p),
        ("tensors", c.POINTER(PlanTensor)),
        ("forward_ns", c.c_double),
        ("update_ns", c.c_double),
    ]


class PlanCodec(c.Structure):
    _c_name_ = "esp_plan_codec"
    _fields_ = [
        ("struct_size", c.c_uint32),
        ("caps", c.c_uint32),
        ("spec", c.c_char_p),
        ("header_bytes", c.c_double),
        ("unit_bytes", c.c_double),
        ("units", c.c_double),
        ("compress", CostCurve * 2),
        ("decompress", CostCurve * 2),
        ("error", c.c_double),
        ("takes_list", c.c_uint32),
        ("lossy", c.c_uint32),
        ("bound", c.c_void_p),
        ("self", c.c_void_p),
        ("n_rounds", c.c_uint32),
        ("round_flags", c.c_uint32),
        ("vector_compress", CostCurve * 2),
        ("vector_decompress", CostCurve * 2),
        ("vector_error", c.c_double),
        ("decompress_more", CostCurve * 2),
    ]


class PlanLink(c.Structure):
    _c_name_ = "esp_plan_link"
    _fields_ = [
        ("alpha_ns", c.c_double),
        ("bytes_per_us", c.c_double),
        ("alpha_is", c.c_uint32),
        ("reserved0", c.c_uint32),
        ("table", CostCurve * ESP_PLAN_COLLS),
        ("gap", CostCurve * ESP_PLAN_COLLS),
        ("core", CostCurve * ESP_PLAN_COLLS),
    ]


class PlanLevel(c.Structure):
    _c_name_ = "esp_plan_level"
    _fields_ = [("size", c.c_uint32), ("reserved0", c.c_uint32), ("link", PlanLink)]


class PlanSystem(c.Structure):
    _c_name_ = "esp_plan_system"
    _fields_ = [
        ("struct_size", c.c_uint32),
        ("machines", c.c_uint32),
        ("ranks_per_machine", c.c_uint32),
        ("devices", c.c_uint32),
        ("name", c.c_char_p),
        ("intra", PlanLink),
        ("inter", PlanLink),
        ("flat", PlanLink),
        ("host_bytes_per_us", c.c_double),
        ("pack_ns", c.c_double),
        ("pack_bytes_per_us", c.c_double),
        ("cores_per_rank", c.c_uint32),
        ("n_outer", c.c_uint32),
        ("outer", PlanLevel * ESP_PLAN_OUTER),
        ("dispatch_ns", c.c_double * ESP_PLAN_LANES),
    ]


class PlanConfig(c.Structure):
    _c_name_ = "esp_plan_config"
    _fields_ = [
        ("struct_size", c.c_uint32),
        ("flags", c.c_uint32),
        ("strategy", c.c_char_p),
        ("devices", c.c_uint32),
        ("max_comp", c.c_uint32),
        ("forbid", c.POINTER(c.c_char_p)),
        ("only", c.POINTER(c.c_char_p)),
        ("keep", c.POINTER(c.c_char_p)),
        ("n_forbid", c.c_uint32),
        ("n_only", c.c_uint32),
        ("n_keep", c.c_uint32),
        ("n_kept_codecs", c.c_uint32),
        ("budget_ns", c.c_double),
        ("seed", c.c_uint64),
        ("max_memory_bytes", c.c_uint64),
        ("max_volume", c.c_double),
        ("max_error", c.c_double),
        ("min_compress_elements", c.c_uint64),
    ]


class PlanReport(c.Structure):
    _c_name_ = "esp_plan_report"
    _fields_ = [
        ("struct_size", c.c_uint32),
        ("n_tensors", c.c_uint32),
        ("n_units", c.c_uint32),
        ("compressed", c.c_uint32),
        ("fp32_ns", c.c_double),
        ("iteration_ns", c.c_double),
        ("bound_ns", c.c_double),
        ("free_compression_ns", c.c_double),
        ("plan_ns", c.c_double),
        ("memory_bytes", c.c_uint64),
        ("lane_ns", c.c_double * ESP_PLAN_LANES),
        ("exposed_communication_ns", c.c_double),
        ("exposed_compression_ns", c.c_double),
        ("bubble_ns", c.c_double * ESP_PLAN_LANES),
        ("intra_bytes", c.c_uint64),
        ("inter_bytes", c.c_uint64),
        ("level_bytes", c.c_uint64 * ESP_LEVELS),
    ]


STRUCTS: List[Any] = [
    Device, Stream, Config, TensorDesc, Stats, TensorStats, CostPoint, CostCurve, PlanTensor, PlanModel, PlanCodec,
    PlanLink, PlanLevel, PlanSystem, PlanConfig, PlanReport,
]  # fmt: skip

_handle, _text, _size = c.c_void_p, c.c_char_p, c.c_uint64
_out_handle, _out_size = c.POINTER(c.c_void_p), c.POINTER(c.c_uint64)

# name: (type of the result, types of the arguments)
FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "esp_open": (status_t, [c.POINTER(Config), _out_handle]),
    "esp_close": (None, [_handle]),
    "esp_rank": (c.c_int32, [_handle]),
    "esp_size": (c.c_int32, [_handle]),
    "esp_machine": (c.c_int32, [_handle]),
    "esp_machines": (c.c_int32, [_handle]),
    "esp_last_error": (_text, [_handle]),
    "esp_status_name": (_text, [status_t]),
    "esp_status_text": (_text, [status_t]),
    "esp_tensor_add": (status_t, [_handle, c.POINTER(TensorDesc), c.POINTER(c.c_uint32)]),
    "esp_start": (status_t, [_handle]),
    "esp_broadcast": (status_t, [_handle, c.c_void_p, _size, c.c_int32]),
    "esp_allreduce_as": (status_t, [_handle, c.c_void_p, _size, c.c_uint32, c.c_uint32]),
    "esp_barrier": (status_t, [_handle]),
    "esp_weight": (status_t, [_handle, c.c_float]),
    "esp_push": (status_t, [_handle, c.c_uint32, c.c_void_p, Stream]),
    "esp_push_zero": (status_t, [_handle, c.c_uint32, c.c_void_p, Stream]),
    "esp_wait": (status_t, [_handle, c.c_uint32]),
    "esp_test": (status_t, [_handle, c.c_uint32]),
    "esp_wait_on": (status_t, [_handle, c.c_uint32, Stream]),
    "esp_wait_all": (status_t, [_handle]),
    "esp_cancel": (status_t, [_handle]),
    "esp_discard_step": (status_t, [_handle]),
    "esp_report_loss": (status_t, [_handle, c.c_double]),
    "esp_feedback_scale": (status_t, [_handle, c.c_float]),
    "esp_feedback_clear": (status_t, [_handle]),
    "esp_strategy_set": (status_t, [_handle, _text]),
    "esp_strategy_text": (_text, [_handle]),
    "esp_shrink": (status_t, [_handle]),
    "esp_part": (status_t, [_handle, c.c_uint32, c.c_int32, _out_size, _out_size]),
    "esp_gather": (status_t, [_handle, c.c_uint32, c.c_void_p, Stream]),
    "esp_state_save": (status_t, [_handle, _text]),
    "esp_state_load": (status_t, [_handle, _text]),
    "esp_state_write": (status_t, [_handle, io_fn, c.c_void_p]),
    "esp_state_read": (status_t, [_handle, io_fn, c.c_void_p]),
    "esp_stats_read": (status_t, [_handle, c.POINTER(Stats)]),
    "esp_tensor_stats_read": (status_t, [_handle, c.c_uint32, c.POINTER(TensorStats)]),
    "esp_plugin_load": (status_t, [_handle, _text]),
    "esp_abi_version": (c.c_uint32, []),
    "esp_codec_open": (status_t, [_handle, _text, _size, _text, _out_handle]),
    "esp_codec_open_matrix": (status_t, [_handle, _text, _size, _size, _text, _out_handle]),
    "esp_codec_close": (None, [_handle]),
    "esp_compress_bound": (_size, [_handle]),
    "esp_compress": (status_t, [_handle, c.c_void_p, _size, c.c_void_p, _size, _out_size]),
    "esp_decompress": (status_t, [_handle, c.c_void_p, _size, c.c_void_p, _size, c.c_uint32]),
    "esp_codec_residual": (c.c_void_p, [_handle]),
    "esp_plan_make": (
        status_t,
        [
            c.POINTER(PlanModel),
            c.POINTER(PlanCodec),
            c.c_uint32,
            c.POINTER(PlanSystem),
            c.POINTER(PlanConfig),
            _out_handle,
        ],
    ),
    "esp_plan_text": (_text, [_handle]),
    "esp_plan_report_read": (status_t, [_handle, c.POINTER(PlanReport)]),
    "esp_plan_free": (None, [_handle]),
}
