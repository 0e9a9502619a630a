"""Bytes to requests, results to bytes, errors to statuses. Knows no batches, processes or stores."""
