"""The settings of the TCP gate."""

from shared.settings.setting import HOST_PORT, Setting, int_row, text_row

ROWS: tuple[Setting, ...] = (
    text_row(
        "gate_listen",
        "",
        "host:port",
        "the TCP gate's address; unset: `penstock up` starts no gate, `penstock gate` uses 127.0.0.1:7070",
        pattern=f"|{HOST_PORT}",
    ),
    text_row(
        "gate_metrics_listen",
        "",
        "host:port",
        "the gate's address for /health and /metrics; unset: not served; port 0: any free port",
        pattern=f"|{HOST_PORT}",
    ),
    int_row(
        "gate_frame_ms",
        10_000,
        "ms",
        10,
        3_600_000,
        "a frame that takes longer to arrive is refused; a client that reads nothing for this long is disconnected",
    ),
    int_row(
        "gate_idle_ms", 600_000, "ms", 10, 86_400_000, "a connection without frames or jobs for this long is closed"
    ),
    int_row("gate_max_frames", 256, "jobs", 1, 100_000, "bound on the jobs in flight on one gate connection"),
)
