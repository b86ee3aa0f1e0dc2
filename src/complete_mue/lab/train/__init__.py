"""Training: objectives, schedule, and the loop that long runs can trust."""
