"""The declarations of espresso.h as ctypes types. tests/python/check_abi.py compares them with the header."""

from __future__ import annotations

import ctypes as c
from typing import Any, Dict, List, Tuple

ESPRESSO_VERSION = "0.1.0"
_ERRORS = "ARG NOMEM UNSUPPORTED TOO_SMALL ABI NOT_FOUND DEVICE COMM CORRUPT STATE PEER TIMEOUT MISMATCH CANCELED"
STATUS = {"ESP_OK": 0, "ESP_PENDING": 1, **{"ESP_E_" + name: -i for i, name in enumerate(_ERRORS.split(), 1)}}
ESP_OK, ESP_PENDING, ESP_E_STATE = 0, 1, -10
ESP_F32, ESP_F16, ESP_BF16, ESP_I32, ESP_F64, ESP_I64 = 1, 2, 3, 6, 7, 8
ESP_REDUCE_SUM, ESP_REDUCE_MAX, ESP_REDUCE_MIN = 1, 2, 3
ESP_CPU, ESP_CUDA = 1, 2
ESP_ALLOW_OVERRIDE, ESP_DISCARDABLE, ESP_JOIN = 1, 2, 4
ESP_OPTIMIZER_UNKNOWN, ESP_OPTIMIZER_SGD, ESP_OPTIMIZER_MOMENTUM, ESP_OPTIMIZER_ADAM = 0, 1, 2, 3
ESP_SUM, ESP_RAW, ESP_SHARD = 1, 2, 4
ESP_OUT_SET, ESP_OUT_SUM = 0, 1
ESP_LEVELS = 3

status_t = c.c_int32
allgather_fn = c.CFUNCTYPE(status_t, c.c_void_p, c.c_void_p, c.c_void_p, c.c_uint64)
io_fn = c.CFUNCTYPE(status_t, c.c_void_p, c.c_void_p, c.c_uint64)

_types: Dict[str, Any] = {
    **dict(zip(("u32", "i32", "u64", "f32", "f64"), (c.c_uint32, c.c_int32, c.c_uint64, c.c_float, c.c_double))),
    **dict(zip(("text", "ptr", "status", "void"), (c.c_char_p, c.c_void_p, status_t, None))),
    **{"u64s": c.c_uint64 * ESP_LEVELS, "allgather": allgather_fn, "io": io_fn},
}


def _type(kind: str) -> Any:
    return c.POINTER(_type(kind[:-1])) if kind.endswith("*") else _types[kind]


def _members(text: str) -> List[Tuple[str, Any]]:
    """Reads "TYPE NAME ...; ..." as the members of a struct."""
    rows = (row.split() for row in text.split(";"))
    return [(name, _types[kind]) for kind, *names in rows for name in names]


class Device(c.Structure):
    _c_name_ = "esp_device"
    _fields_ = _members("u32 kind; i32 ordinal")


_types["Device"] = Device


class Stream(c.Structure):
    _c_name_ = "esp_stream"
    _fields_ = _members("Device dev; ptr native")


class Config(c.Structure):
    _c_name_ = "esp_config"
    _fields_ = _members(
        "u32 struct_size flags; text backend codec strategy plugin_path; ptr builtin; u32 n_builtin; i32 log_level "
        "rank size machine; u32 timeout_ms; allgather oob_allgather; ptr oob_user; text root trace; u32 "
        "cpu_workers reserved0; u64 seed; ptr host; text stats workers place progress; u64 min_compress_elements; "
        "u32 optimizer; f32 momentum"
    )


class TensorDesc(c.Structure):
    _c_name_ = "esp_tensor_desc"
    _fields_ = _members(
        "u32 struct_size dtype; text name; u64 count rows cols; Device device; u32 flags reserved0; text codec "
        "option gather"
    )


class Stats(c.Structure):
    _c_name_ = "esp_stats"
    _fields_ = _members(
        "u32 struct_size reserved0; u64 steps intra_bytes inter_bytes nonfinite memory_bytes compress_ns "
        "decompress_ns intra_ns inter_ns step_ns backward_ns exposed_communication_ns exposed_compression_ns; u64s "
        "level_bytes level_ns; u64 slots_bytes feedback_bytes backend_bytes "
        "outer_rounds outer_bytes outer_wait_ns ranks_lost ranks_joined outer_missed"
    )


class TensorStats(c.Structure):
    _c_name_ = "esp_tensor_stats"
    _fields_ = _members("u32 struct_size samples; f64 error feedback; u64 pushes zeros")


class OuterDesc(c.Structure):
    _c_name_ = "esp_outer_desc"
    _fields_ = _members(
        "u32 struct_size flags; text method; u32 every fragments delay; f32 alpha lr momentum; u32 nesterov reserved0"
    )


STRUCTS: List[Any] = [Device, Stream, Config, TensorDesc, Stats, TensorStats, OuterDesc]
_types.update({s.__name__: s for s in STRUCTS})

# types of the result and the arguments: names
_SIGNATURES = {
    "status Config* ptr*": "esp_open",
    "void ptr": "esp_close esp_codec_close",
    "i32 ptr": "esp_rank esp_size esp_machine esp_machines",
    "text ptr": "esp_last_error esp_strategy_text",
    "text status": "esp_status_name esp_status_text",
    "status ptr TensorDesc* u32*": "esp_tensor_add",
    "status ptr": "esp_start esp_barrier esp_wait_all esp_cancel esp_discard_step esp_feedback_clear esp_shrink "
    "esp_reconfigure",
    "status ptr ptr u64": "esp_allreduce",
    "status ptr ptr u64 u32 u32": "esp_allreduce_as",
    "status ptr ptr u64 i32": "esp_broadcast",
    "status ptr f32": "esp_weight esp_feedback_scale",
    "status ptr f64": "esp_report_loss",
    "status ptr OuterDesc*": "esp_outer_open",
    "status ptr u32 ptr": "esp_outer_add",
    "status ptr Stream": "esp_outer_step esp_outer_sync",
    "status ptr u32 ptr Stream": "esp_push esp_push_zero esp_gather",
    "status ptr u32": "esp_wait esp_test",
    "status ptr u32 Stream": "esp_wait_on",
    "status ptr text": "esp_strategy_set esp_state_save esp_state_load esp_plugin_load",
    "status ptr u32 i32 u64* u64*": "esp_part",
    "status ptr io ptr": "esp_state_write esp_state_read",
    "status ptr Stats*": "esp_stats_read",
    "status ptr u32 TensorStats*": "esp_tensor_stats_read",
    "u32": "esp_abi_version",
    "status ptr text u64 text ptr*": "esp_codec_open",
    "status ptr text u64 u64 text ptr*": "esp_codec_open_matrix",
    "u64 ptr": "esp_compress_bound",
    "status ptr ptr u64 ptr u64 u64*": "esp_compress",
    "status ptr ptr u64 ptr u64 u32": "esp_decompress",
    "ptr ptr": "esp_codec_residual",
}
# name: types of the result and the arguments
FUNCTIONS: Dict[str, List[Any]] = {
    name: [_type(kind) for kind in kinds.split()] for kinds, names in _SIGNATURES.items() for name in names.split()
}
