"""rq-dashboard for operators, modified so that it is safe to use with Penstock's store."""
