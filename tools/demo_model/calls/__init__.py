"""Generates conversations in which the demo model calls tools: the tools, the requests, their results and answers."""
