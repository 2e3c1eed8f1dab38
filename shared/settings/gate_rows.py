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
        "the gate's address for /health, /health/ready and /metrics; unset: not served; port 0: any free port",
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
    int_row(
        "gate_max_connections",
        10_000,
        "connections",
        1,
        60_000,
        "at once, in all; if they are all open, a new one replaces the oldest of a client without a valid key",
    ),
    int_row(
        "gate_max_connections_per_address",
        1_000,
        "connections",
        1,
        60_000,
        "the same for one client address, so that one machine cannot occupy all connections of the gate",
    ),
    int_row(
        "gate_stranger_bytes",
        16_777_216,
        "bytes",
        65_536,
        1_073_741_824,
        "held of the frames of all connections without a valid key: room for 16 of the longest; the oldest is dropped",
    ),
    int_row(
        "gate_stranger_frame_ms",
        5_000,
        "ms",
        10,
        3_600_000,
        "longest time for a frame over 4 KiB on a connection without a valid key; 1 MiB takes 1 s at 10 Mbit/s",
    ),
    int_row(
        "gate_stranger_idle_ms",
        60_000,
        "ms",
        10,
        86_400_000,
        "longest time without frames for a connection without a valid key; a client with a key sends it at once",
    ),
    int_row("gate_max_frames", 256, "jobs", 1, 100_000, "bound on the jobs in flight on one gate connection"),
)
