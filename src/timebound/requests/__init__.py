"""A request's life, from the moment it is accepted until its one answer is given."""
