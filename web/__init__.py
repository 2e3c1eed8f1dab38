"""The door, which receives requests over HTTP and TCP and returns verdicts and answers; it stores no job state."""
