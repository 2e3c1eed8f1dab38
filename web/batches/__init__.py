"""Batches and files: their routes, and the duty that offers a batch's lines and writes its results."""
