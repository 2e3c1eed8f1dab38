"""Operations on jobs that the HTTP routes and the gate share: admit, follow, wait for the end, and cancel."""
