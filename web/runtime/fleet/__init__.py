"""The metrics of the whole system, which any process of the door reads from the store."""
