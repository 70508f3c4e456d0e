"""Real models and whole repositories, from the profile to the load."""
