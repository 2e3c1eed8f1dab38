"""The console: a live page for operators, who see tenants, workers and jobs there, and act on them."""
