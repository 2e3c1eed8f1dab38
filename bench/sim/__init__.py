"""The overload simulator: virtual time over the real scripts, workers modelled step by step."""
