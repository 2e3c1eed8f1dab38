"""The invariants of the store, and what checks them."""
