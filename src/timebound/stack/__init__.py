"""Several servers on one machine, behind nginx and with one Redis: `timebound up`."""
