"""Tests of LlamaLog, which reads buffer sizes and the causes of errors from the log lines of llama.cpp."""

from tests.support.logs import logs_of_this_thread
from workers.engine.llama.log import LlamaLog

_LINES = [
    (2, "load_tensors: offloaded 33/33 layers to GPU\n"),
    (2, "load_tensors:        CUDA0 model buffer size =  4095.50 MiB\n"),
    (2, "load_tensors:   CPU_Mapped model buffer size =    70.25 MiB\n"),
    (2, "llama_kv_cache:      CUDA0 KV buffer size =   512.00 MiB\n"),
    (2, "sched_reserve:      CUDA0 compute buffer size =   900.00 MiB\n"),
    (2, "sched_reserve:      CUDA0 compute buffer size =   300.00 MiB\n"),
    (2, "llama_context:        CPU  output buffer size =     0.50 MiB\n"),
]


def test_buffer_sizes_are_summed_over_devices_and_a_second_reservation_replaces_the_first():
    log = LlamaLog()
    for level, line in _LINES:
        log.add_line(level, line)
    assert log.buffer_bytes("model") == int(4165.75 * 2**20)
    assert log.buffer_bytes("KV", "RS") == 512 << 20
    assert log.buffer_bytes("compute", "output") == int(300.5 * 2**20)
    assert (log.layers_offloaded, log.layers) == (33, 33)


def test_the_two_caches_of_a_context_with_a_sliding_window_are_added_and_those_of_an_earlier_context_are_not():
    log = LlamaLog()
    for line in ("load_tensors: CUDA0 model buffer size = 9.00 MiB", "x: CUDA0 KV buffer size = 100.00 MiB"):
        log.add_line(2, line)
    log.forget_context()
    for size in ("1.00", "0.25"):
        log.add_line(2, f"llama_kv_cache: CUDA0 KV buffer size = {size} MiB")
        log.add_line(2, f"llama_kv_cache: CPU KV buffer size = {size} MiB")
    log.add_line(2, "llama_memory_recurrent: CUDA0 RS buffer size = 3.00 MiB")
    assert log.device_bytes("KV", "RS") == {"CUDA0": int(4.25 * 2**20), "CPU": int(1.25 * 2**20)}
    assert log.device_bytes("model") == {"CUDA0": 9 << 20}


def test_errors_are_kept_once_each_and_in_order_until_the_next_load():
    log = LlamaLog()
    for line in ("first\n", "second\n", "second\n", "\n"):
        log.add_line(4, line)
    log.add_line(3, "a warning\n")
    log.add_line(1, "not an error\n")
    assert log.errors() == "first; second"
    log.clear()
    assert log.errors() == ""
    assert log.buffer_bytes("model") == 0


def test_without_an_error_the_warnings_are_reported_instead():
    log = LlamaLog()
    log.add_line(3, "a warning\n")
    assert log.errors() == "a warning"


def logged(log: LlamaLog, *lines: str) -> list[str]:
    """Return the errors that are logged at once when llama.cpp reports these lines."""
    with logs_of_this_thread() as events:
        for line in lines:
            log.add_line(4, line)
    return [event["error"] for event in events]


def test_errors_of_a_loaded_model_are_logged_at_once_and_repeats_are_not():
    log = LlamaLog()
    assert logged(log, "no room for a context\n") == []
    log.logs_errors = True
    assert logged(log, "CUDA error: an illegal instruction\n", "  \n", "  in f at x.cu:1\n", "  in f at x.cu:1\n") == [
        "CUDA error: an illegal instruction",
        "in f at x.cu:1",
    ]
    assert len(logged(log, "x" * 5_000)[0]) == 1_000
    with logs_of_this_thread() as events:
        log.add_line(3, "only a warning")
    assert events == []
    log.clear()
    assert logged(log, "another model cannot be loaded") == []


def test_a_model_that_reports_errors_for_ever_does_not_fill_the_log():
    log = LlamaLog()
    log.logs_errors = True
    assert len(logged(log, *(f"error {number}" for number in range(1_000)))) == 200
    assert log.errors().endswith("error 999")
