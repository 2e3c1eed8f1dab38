"""`penstock demo`: three teams on one private stack, one of which floods it, and what each team's clients see."""
