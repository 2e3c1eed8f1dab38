"""Structured output: makes an answer follow a JSON schema, a regular expression, a grammar or a list of choices.

The library llguidance does the work, and no other package imports it. A grammar is compiled twice: first by a helper
process, which is killed if that takes too long, and then by this process, which nothing could interrupt.
"""
