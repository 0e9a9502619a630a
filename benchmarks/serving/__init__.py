"""What users run: each script starts servers, measures them and holds them to its bars."""
