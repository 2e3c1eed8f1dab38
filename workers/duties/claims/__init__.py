"""From the answer to a claim to a row in the engine: claims jobs, prepares and submits them."""
