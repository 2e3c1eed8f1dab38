"""`penstock plan`: says from a model file's header what the model takes, and how many jobs fit and are done per second.

`layout` finds what the header says, `layers` what each layer keeps for a token, `memory` what a worker with this model
takes, and `work` what it can do. `__main__` reads the command line, and `report` writes the plan.
"""
