"""rq-dashboard, made safe for this store."""
