"""The semantic cache: an earlier answer for a prompt that asks the same in other words."""
