"""The bodies of requests to OpenAI's routes for batches."""
