"""A minimal Flask route for comparison with the door: it reads JSON, sends one EVALSHA to the store and answers 503."""

import os

import redis
from flask import Flask, Response, request

#: The smallest query that any door with an inflight bound must send.
_COUNT = "return {redis.call('ZCARD', KEYS[1]), ARGV[1]}"
_BODY = b'{"status":"yield","retry_hint_ms":1000,"reason":"inflight_full"}'

app = Flask("bare")
_client = redis.from_url(os.environ["REDIS_URL"])
_sha = _client.script_load(_COUNT)


@app.post("/v1/jobs")
def refuse() -> Response:
    """Query the number of inflight jobs, then refuse."""
    request.get_json()
    _client.evalsha(_sha, 1, "penstock:inflight", "job")
    return Response(_BODY, 503, {"retry-after-ms": "1000", "Retry-After": "1"}, mimetype="application/json")
