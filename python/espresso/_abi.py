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

status_t = c.c_int32
allgather_fn = c.CFUNCTYPE(status_t, c.c_void_p, c.c_void_p, c.c_void_p, c.c_uint64)
io_fn = c.CFUNCTYPE(status_t, c.c_void_p, c.c_void_p, c.c_uint64)


_types: Dict[str, Any] = {
    "u32": c.c_uint32,
    "i32": c.c_int32,
    "u64": c.c_uint64,
    "u64s": c.c_uint64 * ESP_LEVELS,
    "f32": c.c_float,
    "f64": c.c_double,
    "text": c.c_char_p,
    "ptr": c.c_void_p,
    "allgather": allgather_fn,
}


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
        "level_bytes level_ns; u64 slots_bytes feedback_bytes backend_bytes"
    )


class TensorStats(c.Structure):
    _c_name_ = "esp_tensor_stats"
    _fields_ = _members("u32 struct_size samples; f64 error feedback; u64 pushes zeros")


STRUCTS: List[Any] = [Device, Stream, Config, TensorDesc, Stats, TensorStats]
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
}
