"""The engine in front of an OpenAI-compatible server: it passes jobs to the server and reads their answers.

It implements `workers.job_engine.JobEngine`, beside the batching engine: the same claims, leases and delivery, but no
KV cells and no planner. All exchanges with the server run in one event loop, on the engine's thread.
"""
