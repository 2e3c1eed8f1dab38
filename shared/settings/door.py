"""The settings of the door and of the TCP gate."""

from dataclasses import dataclass

from shared.settings.setting import AUTO, HOST_PORT, host_port, number, text, word


@dataclass(frozen=True)
class DoorSettings:
    """The door's addresses, who may use it, the size of a request, and the sign-in of users."""

    listen: str = text(
        "127.0.0.1:8000", "host:port", "the door's address; the default is loopback only", pattern=HOST_PORT
    )
    web_workers: int = number(2, "processes", (1, 64), "HTTP processes of the door; one can restart while others serve")
    regions: str = text(
        "",
        "names, comma-separated",
        "regions of cells, the nearest to this door first, as in eu-1,eu-2: tenants that are not pinned get cells of "
        "these regions before others; unset: no cell is preferred",
        pattern="[A-Za-z0-9_.,-]{0,256}",
    )
    auth: str = word(
        "required",
        ("required", "open"),
        "open (loopback addresses only): API keys are ignored, and the X-Tenant header names the tenant",
    )
    admin_key_file: str = text(
        "", "a file", "unset: admin.key in the state folder; a missing file is created with mode 0600"
    )
    allowed_hosts: str = text(
        "",
        "host names, comma-separated",
        "accepted Host headers; others get status 421, against DNS rebinding; unset: loopback names",
    )
    trusted_proxies: str = text(
        "",
        "addresses or networks, comma-separated",
        "proxies whose X-Forwarded-For is believed (`unix`: those on a Unix socket); unset: the peer is the client",
    )
    failed_keys_per_minute: int = number(
        30,
        "keys a minute",
        (1, 1_000_000),
        "for one client address and process: further keys that are not valid get 429; a valid key is always accepted",
    )
    cors_origins: str = text("", "origins, comma-separated", "origins whose web pages may read answers; unset: none")
    dashboard: str = word("auto", ("auto", "off", "read", "write"), "auto: read on loopback addresses, otherwise off")
    tenant_bound_status: int = number(
        503,
        "HTTP status",
        (400, 599),
        "status of refusals by a tenant's own bounds; set 429 if a service mesh ejects backends on 5xx",
    )
    webhook_hosts: str = text(
        "",
        "hosts or host:port, comma-separated",
        "receivers of webhooks that may be private, use http and any port, or only the port that is given; others need "
        "https, port 443 and a public address; unset: none",
    )
    max_body_bytes: int = number(1_048_576, "bytes", (1_024, 1_073_741_824), "longer request bodies get status 413")
    request_head_ms: int = number(
        20_000,
        "ms",
        (100, 600_000),
        "a request whose head takes longer to arrive gets status 408; a head is one or two packets",
    )
    request_body_ms: int = number(
        60_000,
        "ms",
        (100, 3_600_000),
        "a body that takes longer to arrive gets status 408; 1 MiB in this time is 140 kbit/s",
    )
    max_connections: int = number(
        AUTO,
        "connections",
        (16, 1_000_000),
        "open connections of one HTTP process, beyond which only /health is served; auto: 10000, if open files allow",
    )
    max_address_connections: int = number(
        AUTO,
        "connections",
        (1, 1_000_000),
        "of these from one client address; for clients of a trusted proxy, their open requests; auto: an eighth",
    )
    max_tenant_requests: int = number(
        AUTO,
        "requests",
        (1, 1_000_000),
        "open requests of one tenant at one HTTP process, such as waits and streams; auto: a quarter",
    )
    max_open_head_bytes: int = number(
        16_777_216,
        "bytes",
        (65_536, 1_073_741_824),
        "unfinished heads at one HTTP process: room for 512 of the longest; the oldest over 4 KiB gets status 503",
    )
    max_open_body_bytes: int = number(
        AUTO,
        "bytes",
        (1_024, 1_099_511_627_776),
        "bodies that one HTTP process reads and parses at once; auto: 64 MiB, or four of the longest bodies",
    )
    max_tenant_body_bytes: int = number(
        AUTO,
        "bytes",
        (1_024, 1_099_511_627_776),
        "of these from one tenant; auto: a quarter, so that one tenant cannot stop the others' requests",
    )
    sign_in_proxies: str = text(
        "",
        "addresses or networks, comma-separated",
        "proxies whose X-Forwarded-User, -Email and -Groups name the user (`unix`: on a Unix socket); unset: none",
    )
    sign_in_roles: str = text(
        "",
        "GROUP=ROLE, comma-separated",
        "ROLE is operator, tenant:NAME or group:NAME; the GROUP `*` is every user whom a proxy names; unset: no roles",
    )
    oidc_issuer: str = text(
        "",
        "an https URL",
        "the OpenID Connect issuer whose tokens (JWTs) are accepted as bearer tokens; unset: none",
        pattern=r"(https?://[!-~]+)?",
    )
    oidc_audience: str = text("", "a name", "the audience that a token must have; required if an issuer is set")
    oidc_groups_claim: str = text(
        "groups", "a claim", "the claim that holds a user's groups; dots lead into objects, as in realm_access.roles"
    )
    oidc_name_claim: str = text(
        "email", "a claim", "the claim that holds a user's name for the audit log; otherwise `sub`"
    )

    @property
    def listen_host_port(self) -> tuple[str, int]:
        return host_port(self.listen)


@dataclass(frozen=True)
class GateSettings:
    """The TCP gate."""

    gate_listen: str = text(
        "",
        "host:port",
        "the TCP gate's address; unset: `penstock up` starts no gate, `penstock gate` uses 127.0.0.1:7070",
        pattern=f"|{HOST_PORT}",
        option="--listen",
    )
    gate_metrics_listen: str = text(
        "",
        "host:port",
        "the gate's address for /health, /health/ready and /metrics; unset: not served; port 0: any free port",
        pattern=f"|{HOST_PORT}",
    )
    gate_frame_ms: int = number(
        10_000,
        "ms",
        (10, 3_600_000),
        "a frame that takes longer to arrive is refused; a client that reads nothing for this long is disconnected",
    )
    gate_idle_ms: int = number(
        600_000, "ms", (10, 86_400_000), "a connection without frames or jobs for this long is closed"
    )
    gate_max_connections: int = number(
        10_000,
        "connections",
        (1, 60_000),
        "at once, in all; if they are all open, a new one replaces the oldest of a client without a valid key",
    )
    gate_max_connections_per_address: int = number(
        1_000,
        "connections",
        (1, 60_000),
        "the same for one client address, so that one machine cannot occupy all connections of the gate",
    )
    gate_stranger_bytes: int = number(
        16_777_216,
        "bytes",
        (65_536, 1_073_741_824),
        "held of the frames of all connections without a valid key: room for 16 of the longest; the oldest is dropped",
    )
    gate_stranger_frame_ms: int = number(
        5_000,
        "ms",
        (10, 3_600_000),
        "longest time for a frame over 4 KiB on a connection without a valid key; 1 MiB takes 1 s at 10 Mbit/s",
    )
    gate_stranger_idle_ms: int = number(
        60_000,
        "ms",
        (10, 86_400_000),
        "longest time without frames for a connection without a valid key; a client with a key sends it at once",
    )
    gate_max_frames: int = number(256, "jobs", (1, 100_000), "bound on the jobs in flight on one gate connection")

    @property
    def gate_address(self) -> str:
        """`PENSTOCK_GATE_LISTEN`, or the address on which `penstock gate` listens if it is not set."""
        return self.gate_listen or "127.0.0.1:7070"

    @property
    def gate_host_port(self) -> tuple[str, int]:
        return host_port(self.gate_address)

    @property
    def gate_metrics_host_port(self) -> tuple[str, int]:
        """`PENSTOCK_GATE_METRICS_LISTEN` as (host, port); it must be set."""
        return host_port(self.gate_metrics_listen)
