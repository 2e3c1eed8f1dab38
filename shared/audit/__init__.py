"""The invariants of the store and the code that checks them."""
