"""The pools that one worker serves: that of its model, and one of each of the model's adapters."""
