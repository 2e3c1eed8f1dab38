"""Resolves PENSTOCK_MODEL to a model file on this machine."""

import os

# A server should not send usage statistics. huggingface-hub reads this variable when it is imported.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
