"""`penstock demo`: one of three teams floods a private stack, and each team's clients report what they see."""
