"""The table of settings, and the code that reads them."""
