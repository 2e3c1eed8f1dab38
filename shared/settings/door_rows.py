"""The settings of the door: its addresses, who may use it, and the size of a request."""

from shared.settings.setting import AUTO, HOST_PORT, Setting, int_row, text_row, word_row

ROWS: tuple[Setting, ...] = (
    text_row(
        "listen", "127.0.0.1:8000", "host:port", "the door's address; the default is loopback only", pattern=HOST_PORT
    ),
    int_row("web_workers", 2, "processes", 1, 64, "HTTP processes of the door; one can restart while others serve"),
    word_row(
        "auth",
        "required",
        ("required", "open"),
        "open (loopback addresses only): API keys are ignored, and the X-Tenant header names the tenant",
    ),
    text_row(
        "admin_key_file", "", "a file", "unset: admin.key in the state folder; a missing file is created with mode 0600"
    ),
    text_row(
        "allowed_hosts",
        "",
        "host names, comma-separated",
        "accepted Host headers; others get status 421, against DNS rebinding; unset: loopback names",
    ),
    text_row(
        "trusted_proxies",
        "",
        "addresses or networks, comma-separated",
        "proxies whose X-Forwarded-For is believed (`unix`: those on a Unix socket); unset: the peer is the client",
    ),
    int_row(
        "failed_keys_per_minute",
        30,
        "keys a minute",
        1,
        1_000_000,
        "for one client address and process: further keys that are not valid get 429; a valid key is always accepted",
    ),
    text_row("cors_origins", "", "origins, comma-separated", "origins whose web pages may read answers; unset: none"),
    word_row("dashboard", "auto", ("auto", "off", "read", "write"), "auto: read on loopback addresses, otherwise off"),
    int_row(
        "tenant_bound_status",
        503,
        "HTTP status",
        400,
        599,
        "status of refusals by a tenant's own bounds; set 429 if a service mesh ejects backends on 5xx",
    ),
    text_row(
        "webhook_hosts",
        "",
        "hosts or host:port, comma-separated",
        "receivers of webhooks that may be private, use http and any port, or only the port that is given; others need "
        "https, port 443 and a public address; unset: none",
    ),
    int_row("max_body_bytes", 1_048_576, "bytes", 1_024, 1_073_741_824, "longer request bodies get status 413"),
    int_row(
        "request_head_ms",
        20_000,
        "ms",
        100,
        600_000,
        "a request whose head takes longer to arrive gets status 408; a head is one or two packets",
    ),
    int_row(
        "request_body_ms",
        60_000,
        "ms",
        100,
        3_600_000,
        "a body that takes longer to arrive gets status 408; 1 MiB in this time is 140 kbit/s",
    ),
    int_row(
        "max_connections",
        AUTO,
        "connections",
        16,
        1_000_000,
        "open connections of one HTTP process, beyond which only /health is served; auto: 10000, if open files allow",
        auto=True,
    ),
    int_row(
        "max_address_connections",
        AUTO,
        "connections",
        1,
        1_000_000,
        "of these from one client address; for clients of a trusted proxy, their open requests; auto: an eighth",
        auto=True,
    ),
    int_row(
        "max_tenant_requests",
        AUTO,
        "requests",
        1,
        1_000_000,
        "open requests of one tenant at one HTTP process, such as waits and streams; auto: a quarter",
        auto=True,
    ),
    int_row(
        "max_open_head_bytes",
        16_777_216,
        "bytes",
        65_536,
        1_073_741_824,
        "unfinished heads at one HTTP process: room for 512 of the longest; the oldest over 4 KiB gets status 503",
    ),
    int_row(
        "max_open_body_bytes",
        AUTO,
        "bytes",
        1_024,
        1_099_511_627_776,
        "bodies that one HTTP process reads and parses at once; auto: 64 MiB, or four of the longest bodies",
        auto=True,
    ),
    int_row(
        "max_tenant_body_bytes",
        AUTO,
        "bytes",
        1_024,
        1_099_511_627_776,
        "of these from one tenant; auto: a quarter, so that one tenant cannot stop the others' requests",
        auto=True,
    ),
)
