"""Traces: the spans that the door and the workers write about each job, if PENSTOCK_TRACES is on."""
