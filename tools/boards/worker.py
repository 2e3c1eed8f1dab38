"""The board of one worker."""

from tools.boards.expressions import INTERVAL
from tools.boards.grafana import Board, Panel, Variable

_OF_WORKER = 'job="penstock-worker", instance="$instance"'

WORKER = Board(
    "penstock-worker",
    "Penstock: one worker",
    "One worker, by its own metrics (PENSTOCK_WORKER_LISTEN).",
    (
        Panel(
            "Slots",
            "short",
            (
                (f"penstock_worker_slots_busy{{{_OF_WORKER}}}", "busy"),
                (f"penstock_worker_slots{{{_OF_WORKER}}}", "slots"),
                (f"penstock_worker_paused_jobs{{{_OF_WORKER}}}", "paused jobs"),
            ),
            "Slots in use, all slots, and paused jobs, which have no slot.",
        ),
        Panel(
            "KV cells",
            "percentunit",
            ((f"penstock_worker_kv_used_ratio{{{_OF_WORKER}}}", "reserved"),),
            "The share of the KV cells that is reserved for jobs.",
        ),
        Panel(
            "Tokens",
            "short",
            tuple(
                (f"rate(penstock_worker_{kind}_tokens_total{{{_OF_WORKER}}}[{INTERVAL}])", legend)
                for kind, legend in (
                    ("prompt", "prompt"),
                    ("cached", "reused"),
                    ("completion", "generated"),
                    ("recomputed", "computed again"),
                    ("dead", "for ended jobs"),
                )
            ),
            "Tokens a second, those of running jobs included.",
        ),
        Panel(
            "Steps",
            "short",
            (
                (f"rate(penstock_worker_steps_total{{{_OF_WORKER}}}[{INTERVAL}])", "steps"),
                (f"rate(penstock_worker_idle_slot_steps_total{{{_OF_WORKER}}}[{INTERVAL}])", "with an idle slot"),
            ),
            "Steps of the engine in a second, and those with a free slot although a job was queued.",
        ),
        Panel(
            "Time in the model",
            "percentunit",
            ((f"rate(penstock_worker_decode_seconds_total{{{_OF_WORKER}}}[{INTERVAL}])", "busy"),),
            "The share of the time that the engine spends in calls of the model.",
        ),
        Panel(
            "Is it up",
            "none",
            ((f"up{{{_OF_WORKER}}}", "up"),),
            "1 if Prometheus reached the worker.",
        ),
    ),
    (Variable("instance", "Worker", 'label_values(penstock_worker_slots{job="penstock-worker"}, instance)'),),
)
