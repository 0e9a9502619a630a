"""What was asked and what was answered, by key: each request is computed once."""
