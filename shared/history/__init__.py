"""The history: what happened in the last hour, day and 30 days, by tenant and by pool."""
