"""From the answer to a claim to a slot of the engine: claims jobs, prepares and submits them."""
