"""What a route has parsed of a request, and the job that the door offers for it."""
