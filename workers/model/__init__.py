"""From PENSTOCK_MODEL to a file on this machine."""
