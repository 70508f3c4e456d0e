"""`ctl compare`: `compare` plans with each strategy and simulates each plan under each of the `truths`."""
